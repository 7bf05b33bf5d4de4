"""The check finds readers of the environment outside the files that may read it."""


def test_getenv_outside_the_one_cpp_file_is_found(lint):
    [finding] = lint("check_getenv", {"cpp_core/net/link.cc": 'auto* x = std::getenv("A");\n'})
    assert (
        finding == "cpp_core/net/link.cc:1: getenv outside cpp_core/base/environment.cc; take the value as an argument"
    )


def test_getenv_in_a_comment_or_a_string_is_ignored(lint):
    text = '// never call getenv here\nconst char* text = "getenv";\n/* environ\n getenv */\n'
    assert lint("check_getenv", {"cpp_core/net/link.cc": text}) == []


def test_the_one_cpp_file_may_read(lint):
    assert lint("check_getenv", {"cpp_core/base/environment.cc": "extern char** environ;\n"}) == []


def test_python_readers_are_found_in_every_spelling(lint):
    text = "import os\nfrom os import environ\nx = os.environ['A']\ny = os.getenv('A')\n"
    findings = lint("check_getenv", {"horocache/collectives/api.py": text})
    assert [finding.split(":")[1] for finding in findings] == ["2", "3", "4"]


def test_the_one_python_module_and_tests_may_read(lint):
    text = "import os\nx = os.environ['A']\n"
    allowed = ("horocache/core/launcher_environment.py", "horocache/testing/ranks.py", "tests/mp/test_x.py")
    assert lint("check_getenv", dict.fromkeys(allowed, text)) == []
