"""A notebook as a page of Markdown with its pictures beside it, read as the JSON that it is."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

PICTURES = {"image/svg+xml": "svg", "image/png": "png"}
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal


def convert(source: str, name: str, follow: Callable[[str], str]) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook of this name, whose words `follow` may change, and the files of its pictures."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(source)["cells"]:
        text = "".join(cell["source"]).strip("\n")
        if cell["cell_type"] != "code":
            parts.append(follow(text))
            continue
        parts.append(fence(text, "python"))
        parts += [show(output, name, pictures) for output in cell["outputs"]]
    return "\n\n".join(filter(None, parts)) + "\n", pictures


def show(output: dict[str, Any], name: str, pictures: dict[str, bytes]) -> str:
    """An output in the richest form that a page can have; a picture joins the others."""
    if output["output_type"] == "stream":
        return fence("".join(output["text"]), "{ .text .output }")
    if output["output_type"] == "error":
        return fence("\n".join(output["traceback"]), "{ .text .output }")
    data = {kind: "".join(value) for kind, value in output["data"].items() if isinstance(value, str | list)}
    for kind, suffix in PICTURES.items():
        if kind in data:
            file = f"{name}-{len(pictures) + 1}.{suffix}"
            pictures[file] = data[kind].encode() if suffix == "svg" else base64.b64decode(data[kind])
            return f"![{describe(data)}]({file})"
    if "text/html" in data:
        table = re.sub(r"<(style|script)\b.*?</\1>", "", data["text/html"], flags=re.DOTALL)
        lines = [line for line in table.splitlines() if line.strip()]  # an empty one would end the block
        return "\n".join(['<div class="output">', *lines, "</div>"])
    return fence(data.get("text/plain", ""), "{ .text .output }")


def describe(data: dict[str, str]) -> str:
    """What a picture shows, for those who cannot see it, if the notebook says so."""
    text = data.get("text/plain", "")
    return "Picture" if not text or text.startswith("<") else text


def fence(text: str, kind: str) -> str:
    """A block of code between fences that the text does not hold."""
    text = ESCAPES.sub("", text).strip("\n")
    marks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{marks}{' ' * kind.startswith('{')}{kind}\n{text}\n{marks}" if text else ""
