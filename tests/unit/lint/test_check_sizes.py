"""The size check measures files, functions and complexity."""

BRANCHES = "\n".join(f"    if x == {i}:\n        return {i}" for i in range(15))


def test_a_file_of_601_lines_is_found(lint):
    [finding] = lint("check_sizes", {"horocache/a.py": "x = 1\n" * 601, "horocache/b.py": "x = 1\n" * 600})
    assert finding == "horocache/a.py:601: 601 lines, at most 600; split it by topic"


def test_a_cpp_function_of_61_lines_is_found(lint):
    body = "  x();\n" * 58
    [finding] = lint("check_sizes", {"cpp_core/net/a.cc": f"void F() {{\n{body}}}\nvoid G() {{\n  x();\n{body}}}\n"})
    assert finding.startswith("cpp_core/net/a.cc:61: G() has 61 lines")


def test_a_python_docstring_does_not_count(lint):
    docstring = '    """Says.\n' + "    more\n" * 30 + '    """\n'
    text = "def f():\n" + docstring + "    x()\n" * 59
    assert lint("check_sizes", {"horocache/a.py": text}) == []
    assert len(lint("check_sizes", {"horocache/a.py": text + "    x()\n"})) == 1


def test_complexity_16_is_found(lint):
    [finding] = lint("check_sizes", {"horocache/a.py": f"def f(x):\n{BRANCHES}\n"})
    assert finding == "horocache/a.py:1: f has complexity 16, at most 15"


def test_tests_and_tables_are_exempt(lint):
    long = "x = 1\n" * 500
    assert lint("check_sizes", {"tests/unit/test_a.py": long, "cpp_core/base/knobs.def": long}) == []
