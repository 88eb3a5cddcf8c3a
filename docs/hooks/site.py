"""What `make site` adds to the pages in docs/: README and other texts outside it, linked files, docstrings."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

TEXTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/arena/RESULTS.md": "arena_results.md",
    "examples/scripts/README.md": "scripts.md",
}
"""Texts outside docs/, and their pages."""

LONG_WORD = 22
"""Characters: a longer name would make the column of a table too wide."""

_TARGET = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
"""Where a link or picture leads, without its anchor."""

_NAMES = re.compile(r"^\| `(openrlhf_ada[\w.]*)` \| ([^|]+) \|", re.M)
"""Rows of the tables in docs/api.md: a module and its public names."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages that are made of other texts, and the files that pages link to outside docs/."""
    pages = {page: (ROOT / text).read_text(encoding="utf-8") for text, page in TEXTS.items()}
    pages["reference.md"] = _reference((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "llms.txt", content=_llms(config.nav, pages)))
    for name in sorted(_linked_files()):
        files.append(File.generated(config, f"files/{name}.txt", abs_src_path=str(ROOT / name)))
    return files


def _llms(nav: list[dict[str, list[dict[str, str]] | str]], made: dict[str, str]) -> str:
    """The site for language models, as llmstxt.org has it: each page with its first sentence."""
    lines = ["# openrlhf_ada", "", "> Adaptive rollouts for OpenRLHF: decide per prompt how many answers to sample"]
    for entry in nav:
        ((part, inside),) = entry.items()
        pages = [{part: inside}] if isinstance(inside, str) else inside
        lines += [] if isinstance(inside, str) else ["", f"## {part}", ""]
        for page in pages:
            ((title, name),) = page.items()
            text = made.get(name) or (ROOT / "docs" / name).read_text(encoding="utf-8")
            lines.append(f"- [{title}]({name.replace('.md', '.html')}): {_first_sentence(text)}")
    return "\n".join(lines) + "\n"


def _first_sentence(text: str) -> str:
    """Of the first paragraph; empty where there is none."""
    paragraphs = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    first = next((block for block in paragraphs if block[:1].isalnum()), "")
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.split(r"(?<=\.)\s", first)[0]).rstrip(":")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let every link lead to a page or file of the site."""
    folder = next((Path(text).parent for text, of in TEXTS.items() if of == page.file.src_uri), Path("docs"))
    return _TARGET.sub(lambda match: _on_site(match[1], folder), markdown)


_CODE = re.compile(r"(?<!</span>)<code>([^<]*)</code>")
"""In a line of text. Blocks of code begin with an empty span."""

_PIECE = re.compile(r"[^_/.=,|]*[_/.=,|]+|[^_/.=,|]+")
"""Of a long name: what stays on one line."""


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Names in the text break where a reader expects it, and a pipe in a table is a pipe, as on GitHub."""
    return _CODE.sub(lambda match: f"<code>{_breakable(match[1])}</code>", output)


def _breakable(code: str) -> str:
    """The same text (HTML): no word of it is broken, but a long one after a joint of its parts."""
    words = code.replace(r"\|", "|").split(" ")
    return " ".join("<wbr>".join(f"<span>{piece}</span>" for piece in _pieces(word)) for word in words)


def _pieces(word: str) -> list[str]:
    return [word] if len(word) <= LONG_WORD else _PIECE.findall(word)


def _on_site(target: str, folder: Path) -> str:
    """The target of a link in a text of this folder, as the site has it."""
    if re.match(r"[a-z]+:", target):
        return target
    name = _from_top(target, folder)
    if name in TEXTS:
        return TEXTS[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}.txt"


def _from_top(target: str, folder: Path) -> str:
    """Its path from the top folder."""
    return (ROOT / folder / target).resolve().relative_to(ROOT).as_posix()


def _linked_files() -> set[str]:
    """Files outside docs/, other than TEXTS, that pages link to."""
    texts = {Path(name): Path(name).parent for name in TEXTS} | {
        path.relative_to(ROOT): Path("docs") for path in (ROOT / "docs").glob("*.md")
    }
    targets = {
        _from_top(target, folder)
        for text, folder in texts.items()
        for target in _TARGET.findall((ROOT / text).read_text(encoding="utf-8"))
        if not re.match(r"[a-z]+:", target)
    }
    return {name for name in targets if not name.startswith("docs/") and name not in TEXTS and (ROOT / name).is_file()}


def _reference(api: str) -> str:
    """A page with the docstrings of all public names."""
    lines = ["# Docstrings", "", "Of all public names. [As a library](api.md) has an example for each part.", ""]
    for module, names in _NAMES.findall(api):
        lines += [f"## {module}", "", *(f"::: {module}.{name}\n" for name in re.findall(r"`(\w+)`", names))]
    return "\n".join(lines)
