"""The documentation is held to what exists: pages, links, options, verbs, packages, extras."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import click
import pytest
from tests.support.project import ROOT, pyproject

from stepscope.commands.main import cli

DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
)
VERBS = cli.list_commands(click.Context(cli))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[$;|]\s*)stepscope(?: --?[a-z]+)* ([a-z]+)\b", re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
each_verb = pytest.mark.parametrize("verb", VERBS)


def load_script(name: str) -> Any:
    """A script of the project as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    return FENCE.sub("", text_of(page))


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def local_links(page: Path) -> list[tuple[Path, str]]:
    found = []
    for link in LINK.findall(prose_of(page)):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            found.append(((page.parent / path).resolve() if path else page, anchor))
    return found


def options_of(command: click.Command) -> Iterator[str]:
    """The long names of a command's options, and of its subcommands'."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield from (name for name in parameter.opts if name.startswith("--"))
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            yield from options_of(subcommand)


@each_page
def test_relative_links_lead_somewhere(page):
    for target, anchor in local_links(page):
        assert target.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors_of(target), f"{target.name} has no heading #{anchor}"


def test_every_page_is_reached_from_the_index():
    reached, ahead = set(), [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            ahead += [target for target, _ in local_links(page) if target.exists()]
    assert set(DOCS.rglob("*.md")) - reached == set()


def test_every_finding_page_stands_in_the_index():
    listed = {target for target, _ in local_links(DOCS / "index.md")}
    assert set((DOCS / "findings").glob("*.md")) <= listed


def test_every_finding_has_a_picture_on_its_page():
    """The pictures are as the script draws them."""
    drawn = load_script("finding_pictures")
    assert set(drawn.PICTURES) == {page.stem for page in (DOCS / "findings").glob("*.md")}
    for name, picture in drawn.PICTURES.items():
        page = (DOCS / "findings" / f"{name}.md").read_text(encoding="utf-8")
        assert f"![{picture.about}](../pictures/findings/{name}.svg)\n" in page
        file = DOCS / "pictures" / "findings" / f"{name}.svg"
        assert file.read_text(encoding="utf-8") == drawn.svg(picture)


def test_the_first_picture_of_the_readme_shows_the_whole_wait():
    shots = load_script("screenshots")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = next(name for name in re.findall(r"docs/pictures/([\w-]+\.png)", readme))
    (look,) = (look for look, file in shots.KEPT.items() if file == shown)
    (view,) = (one for one in shots.SLOW_STEP if look.startswith(f"{one.name}-"))
    link = dict(parse_qsl(view.link.format(**shots.second_step())))
    places = shots.second_step()
    assert int(link["from"]) <= places["start"]
    assert int(link["to"]) > places["start"] + shots.SLOW.wait_ns


@each_verb
def test_every_verb_has_a_page(verb):
    page = DOCS / "verbs" / f"{verb}.md"
    assert page.exists()
    assert text_of(page).startswith(f"# stepscope {verb}\n")


def test_every_page_of_a_verb_is_about_one_that_exists():
    assert {page.stem for page in (DOCS / "verbs").glob("*.md")} <= set(VERBS)


@each_verb
def test_every_option_stands_on_the_page_of_its_verb(verb):
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    options = set(options_of(command))
    page = text_of(DOCS / "verbs" / f"{verb}.md")
    assert {name for name in options if not re.search(rf"{name}\b", page)} == set()


@each_page
def test_only_verbs_that_exist_are_spoken_of(page):
    code = [body for _, body in FENCE.findall(text_of(page))]
    code += re.findall(r"`([^`\n]+)`", prose_of(page))
    spoken = {word for piece in code for word in COMMAND.findall(piece)}
    assert spoken <= set(VERBS)


@each_page
def test_only_targets_of_make_that_exist_are_spoken_of(page):
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    spoken = re.findall(r"(?:`|\$ )make ([a-z-]+)", text_of(page))
    assert set(spoken) <= targets


@each_page
def test_python_in_the_pages_is_python(page):
    for language, body in FENCE.findall(text_of(page)):
        if language == "python":
            compile(body, str(page), "exec")


def test_the_architecture_names_the_packages_and_what_is_in_them():
    package = ROOT / "src" / "stepscope"
    packages = {
        path.parent.name: {inside.parent.name for inside in path.parent.glob("*/__init__.py")}
        for path in package.glob("*/__init__.py")
    }
    page = text_of(DOCS / "architecture.md")
    _, _, section = page.partition("## Packages\n")
    section, _, _ = section.partition("### Rules")
    rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", section, re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", inside)) for name, inside in rows} == packages


def test_where_a_change_goes_names_files_that_exist():
    page = text_of(DOCS / "where-does-a-change-go.md")
    package = ROOT / "src" / "stepscope"
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    named = {
        path
        for path in re.findall(r"`([\w/.-]+)`", page)
        if path.partition("/")[0] in {*packages, "docs", "tests", "examples"} and "/" in path
    }
    assert len(named) > 30
    # Of files that a reader is to make, the folder exists.
    made = {path: re.sub(r"[^/]*(NAME|ID|FORMAT|KIND)\b.*", "", path) for path in named}
    places = [[root / kept for root in (package, ROOT)] for kept in made.values()]
    assert [found for found in places if not any(path.exists() for path in found)] == []


def test_the_architecture_says_of_each_dependency_why_it_is_there():
    project = pyproject()["project"]
    page = text_of(DOCS / "architecture.md")
    _, _, section = page.partition("## Dependencies\n")
    rows = set(re.findall(r"^\| ([a-z][\w-]*) \| ", section, re.MULTILINE))
    needed = {re.split(r"[<>=!~;\[ ]", line)[0] for line in project["dependencies"]}
    extras = set(project["optional-dependencies"]) - {"dev"}
    assert rows == needed | extras
