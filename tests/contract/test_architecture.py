"""The classes, layers and packages in docs/architecture.md exist in the source tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `(\w+)` \| `([\w/.]+)` \| .+ \|$", TEXT.partition("\n## Classes\n")[2].partition("\n## ")[0], re.M
)


def test_the_map_has_the_classes_of_every_part():
    folders = {file.rpartition("/")[0] for _, file in ROWS}
    for part in (
        "cpp_core/control",
        "cpp_core/net",
        "cpp_core/data",
        "cpp_core/runtime",
        "horocache",
        "framework_bindings",
    ):
        assert any(folder.startswith(part) for folder in folders), part
    assert len(ROWS) > 30 and len(dict(ROWS)) == len(ROWS)


@pytest.mark.parametrize(("name", "file"), ROWS)
def test_each_class_is_in_the_file_of_the_map(name, file):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(class|struct)( HC_CAPABILITY\(.*\))? {name}\b(?!;)", text, re.MULTILINE)


def test_the_page_lists_the_layers_in_their_order():
    layers = re.search(r"set\(HC_LAYERS ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1].split()
    listed = re.findall(r"^\| `(\w+)/` \|", TEXT, re.MULTILINE)
    assert [layer for layer in reversed(listed) if layer in layers] == layers


def test_each_layer_and_package_in_the_page_exists():
    named = re.findall(r"^\| (`[^|]+`) \|", TEXT, re.MULTILINE)
    paths = [path for cell in named for path in re.findall(r"`((?:horocache|framework_bindings)/[^`]*)`", cell)]
    assert len(paths) > 8
    for path in paths:
        head, _, names = path.partition("{")
        for inner in names.removesuffix("}").split(","):
            assert (ROOT / (head + inner)).exists(), path
