"""Runs the notebooks beside this file, from top to bottom, and keeps what they print and show, nothing of the machine.

A cell that shows a picture ends with a comment that says what is to be seen there: it is kept with the picture.
"""

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

PICTURE = "image/png"


def run(path: Path) -> None:
    """Run a notebook and write it back."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = list_outputs(cell)
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    nbformat.write(notebook, path)


def list_outputs(cell: Any) -> list[Any]:
    """What a cell printed, and then its pictures."""
    printed = [output.text for output in cell.outputs if output.get("name") == "stdout"]
    kept = [nbformat.v4.new_output("stream", name="stdout", text="".join(printed))] if printed else []
    words = cell.source.rpartition("  # ")[2]
    pictures = [output.data[PICTURE] for output in cell.outputs if PICTURE in output.get("data", {})]
    return kept + [
        nbformat.v4.new_output("display_data", data={PICTURE: picture, "text/plain": words}) for picture in pictures
    ]


if __name__ == "__main__":
    for notebook_path in sorted(Path(__file__).parent.glob("*.ipynb")):
        run(notebook_path)
        print(notebook_path.name)
