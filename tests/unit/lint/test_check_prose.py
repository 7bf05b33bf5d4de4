"""The check of prose finds inverted sentences in comments, docstrings, documents and messages."""

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


def test_messages_of_the_product_are_prose(lint):
    sources = {
        "cpp_core/net/a.cc": 'const char* text = "rank 1 is no member";\n',
        "horocache/a.py": 'raise ValueError(f"{rank} is one that nobody knows")\n',
        "tests/a.py": 'TEXT = "nobody waits for it"\n',
    }
    findings = lint("check_prose", sources)
    assert {finding.split(": ")[0] for finding in findings} == {"cpp_core/net/a.cc:1", "horocache/a.py:1"}


def test_questions_code_and_single_words_are_left_alone(lint):
    sources = {
        "cpp_core/net/a.cc": 'const char* text = "Who is it?";  // the text\n',
        "horocache/a.py": 'TEXT = "nobody"  # a name\n\n\ndef f() -> None:\n    """Return `nobody`."""\n',
        "docs/a.md": "What does it do? It is no longer there.\n\n```\nnobody\n```\n\nas many as there are\n",
    }
    assert lint("check_prose", sources) == []
