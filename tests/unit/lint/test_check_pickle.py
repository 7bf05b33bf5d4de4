"""The check for code execution finds unpicklers, eval and shells."""


def test_an_unpickler_outside_the_one_module_is_found(lint):
    text = "import pickle\nfrom cloudpickle import loads\n"
    findings = lint(
        "check_pickle", {"horocache/collectives/api.py": text, "horocache/collectives/object_collectives.py": text}
    )
    assert findings == [
        "horocache/collectives/api.py:1: pickle outside horocache/collectives/object_collectives.py",
        "horocache/collectives/api.py:2: cloudpickle outside horocache/collectives/object_collectives.py",
    ]


def test_a_module_may_write_pickles_and_not_read_them(lint):
    assert lint("check_pickle", {"horocache/a.py": "from pickle import dump, dumps\n"}) == []
    [finding] = lint("check_pickle", {"horocache/a.py": "from pickle import dumps, loads\n"})
    assert finding.startswith("horocache/a.py:1: pickle outside")


def test_eval_is_found_but_the_method_of_a_model_is_not(lint):
    [finding] = lint("check_pickle", {"horocache/a.py": "model.eval()\nx = eval('1')\n"})
    assert finding == "horocache/a.py:2: eval() executes text"


def test_a_shell_is_found_also_in_the_module_that_may_unpickle(lint):
    text = "import os, subprocess\nsubprocess.run('ls', shell=True)\nos.system('ls')\nsubprocess.run(['ls'])\n"
    findings = lint("check_pickle", {"horocache/collectives/object_collectives.py": text})
    assert [finding.split(":")[1] for finding in findings] == ["2", "3"]


def test_torch_load_must_ask_for_weights_only(lint):
    text = "import torch\ntorch.load('a', weights_only=True)\ntorch.load('a')\n"
    [finding] = lint("check_pickle", {"docs/examples/a.py": text})
    assert finding.startswith("docs/examples/a.py:3:")
