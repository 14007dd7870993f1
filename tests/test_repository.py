"""What holds for the repository as such: links, leftovers, the workflow, the changelog."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

_MADE = {"__pycache__", "build", "dist", "node_modules"}
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)"')

# Put together, so that this file passes its own test. Addresses that anybody has, such as
# /usr/lib/postgresql or /tmp, are no machine's own.
_OF_ONE_MACHINE = re.compile(
    "|".join(
        (
            r"(?<![\w.~$}\])/-])/(?:wor" r"k|ro" r"ot|hom" r"e|User" r"s|mn" r"t|srv)/[\w.]",
            r"\.\./shar" r"ed\b",
            r"file:/" r"//",
            r"\b[A-Z]:\\\\?User" r"s\\",
        )
    )
)
_UNFINISHED = re.compile(
    "|".join((r"\bTO" r"DO\b", r"\bFIX" r"ME\b", r"\bXX" r"X\b", r"\bTB" r"D\b"))
)


def files() -> list[Path]:
    """Return every file of the repository, as git has it or as it was unpacked."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        found = [
            path
            for path in ROOT.rglob("*")
            if not any(
                part in _MADE or part.startswith(".venv") or part.endswith("_cache")
                for part in path.relative_to(ROOT).parts
            )
        ]
    return sorted(path for path in found if path.is_file())


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    """Return where a pattern is found, in all files that are text."""
    found = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    return found


def slug(heading: str) -> str:
    """Return the anchor that a heading gets where Markdown is shown."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    names = set(_ANCHOR.findall(text))
    counted: dict[str, int] = {}
    for heading in _HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        name = slug(heading)
        counted[name] = counted.get(name, -1) + 1
        names.add(f"{name}-{counted[name]}" if counted[name] else name)
    return names


def dangling(page: Path, root: Path = ROOT) -> list[str]:
    """Return the links of a page to files or headings of the repository that are not there."""
    found = []
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    for link in (match[1] or match[2] for match in _LINK.finditer(text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        inside = target.is_relative_to(root.resolve()) and target.exists()
        named = not anchor or target.suffix != ".md" or (inside and anchor in anchors(target))
        if not (inside and named):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dangling(page) == []


def test_dangling_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# A `b` c, [d](e.md)\n## Twice\n## Twice\n<a id='x'></a>\n")
    page.write_text(
        "# Here\n[1](other.md) [2](other.md#a-b-c-d) [3](#here) [4](https://example.org/x)\n"
        "[5](other.md#twice-1) `[6](gone.md)`\n```\n[7](gone.md)\n```\n"
        "[8](gone.md) [9](other.md#gone) [10](#gone) [11](../page.md) ![12](gone.png)\n"
    )
    assert dangling(page, tmp_path) == [
        "gone.md",
        "other.md#gone",
        "#gone",
        "../page.md",
        "gone.png",
    ]


def test_nothing_is_left_to_do_in_the_files() -> None:
    assert lines_with(_UNFINISHED) == []


def test_sql_is_ascii() -> None:
    """It goes into databases of every encoding."""
    found = [path.name for path in (ROOT / "sql").iterdir() if not path.read_bytes().isascii()]
    assert found == []


def test_no_file_names_paths_of_one_machine() -> None:
    assert lines_with(_OF_ONE_MACHINE) == []


@pytest.mark.parametrize("name", ["work", "root", "home"])
def test_paths_of_one_machine_are_found(name: str) -> None:
    assert _OF_ONE_MACHINE.search(f"see /{name}/some/where")
    assert _OF_ONE_MACHINE.search(f'path = "/{name}/x"')
    assert not _OF_ONE_MACHINE.search(f"$HOME/{name}/x, ~/{name}/x and docs/{name}/x")


def test_changelog_has_an_unreleased_section_on_top() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert sections.count("Unreleased") == 1
    body = text.split("## Unreleased", 1)[1].split("\n## ", 1)[0]
    assert re.search(r"^- \S", body, re.MULTILINE), "nothing is said of what has changed"


def test_top_level_holds_what_it_may() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in files()}
    assert names - {"PKG-INFO"} <= {
        ".ci", ".github", ".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "benchmarks",
        "docs", "pyagentundo", "pyproject.toml", "sql", "tests",
    }  # fmt: skip


def test_programs_of_the_ci_can_be_run() -> None:
    for path in (ROOT / ".ci").iterdir():
        if path.is_file() and path.read_text(encoding="utf-8").startswith("#!"):
            assert path.stat().st_mode & 0o111 == 0o111, path
            if "bash" in path.read_text(encoding="utf-8").splitlines()[0]:
                subprocess.run(["bash", "-n", path], check=True)


def test_workflow_pins_actions_and_tries_all_versions() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert [name for name in used if not re.fullmatch(r"actions/[\w-]+@v\d+", name)] == []
    assert "secrets." not in text
    for versions in re.findall(r"python: (\[.+\])", text):
        assert versions == '["3.11", "3.12", "3.13"]'
    assert re.findall(r"postgresql: (\[.+\])", text) == ['["14", "15", "16", "17", "18"]']
    named = set(re.findall(r"\.ci/\w+", text))
    assert named
    assert all((ROOT / name).is_file() for name in named)
