"""Runs the notebooks beside this file, from top to bottom, and keeps what they print and nothing of the machine."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient


def run(path: Path) -> None:
    """Run a notebook and write it back."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            printed = [output.text for output in cell.outputs if output.get("name") == "stdout"]
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="".join(printed))] if printed else []
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for notebook_path in sorted(Path(__file__).parent.glob("*.ipynb")):
        run(notebook_path)
        print(notebook_path.name)
