"""The check of prose finds sentences that have to be turned round, in comments, docstrings and documents alone."""

import pytest


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("Who rings adds one.", "Who"),
        ("Returns at once. Whoever waits is woken.", "Whoever"),
        ("What is known of it is kept.", "What"),
        ("It is no error.", "is no"),
        ("Waits until nobody is there.", "nobody"),
        ("A tensor of another type, say.", ", say."),
        ("Takes the core of his neighbour.", "of his"),
        ("The arguments are as there.", "as there"),
    ],
)
def test_riddles_are_found_with_file_and_line(lint, line, word):
    sources = {
        "cpp_core/net/a.cc": f"int x;\n// {line}\n",
        "horocache/a.py": f'def f() -> None:\n    """{line}"""\n',
        "docs/a.md": f"# Title\n\n{line}\n",
    }
    findings = lint("check_prose", sources)
    places = {finding.split(": ")[0] for finding in findings}
    assert places == {"cpp_core/net/a.cc:2", "horocache/a.py:2", "docs/a.md:3"}
    assert all(word in finding for finding in findings)


def test_questions_code_and_strings_are_left_alone(lint):
    sources = {
        "cpp_core/net/a.cc": 'const char* text = "Who is nobody?";  // the text\n',
        "horocache/a.py": 'TEXT = "nobody"  # a name\n\n\ndef f() -> None:\n    """Return `nobody`."""\n',
        "docs/a.md": "What does it do? It is no longer there.\n\n```\nnobody\n```\n\nas many as there are\n",
    }
    assert lint("check_prose", sources) == []
