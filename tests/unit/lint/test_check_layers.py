"""The layer check finds includes that go up the stack or out of a pure layer, and nothing else."""


def test_an_include_that_goes_down_is_allowed(lint):
    assert lint("check_layers", {"cpp_core/net/link.cc": '#include "control/plan.h"\n#include <thread>\n'}) == []


def test_an_include_that_goes_up_is_found_with_file_and_line(lint):
    [finding] = lint("check_layers", {"cpp_core/net/link.cc": '\n#include "runtime/runtime.h"\n'})
    assert finding.startswith("cpp_core/net/link.cc:2: net/ must not include runtime/runtime.h: runtime/ is above it")


def test_a_pure_layer_must_not_know_the_clock_or_threads(lint):
    text = '#include <chrono>\n#include <sys/socket.h>\n#include "base/mutex.h"\n#include <vector>\n'
    findings = lint("check_layers", {"cpp_core/control/controller.cc": text})
    assert [finding.split(":")[1] for finding in findings] == ["1", "2", "3"]
    assert all("control/ is pure" in finding for finding in findings)


def test_the_c_interface_does_not_include_the_binding_above_it(lint):
    assert len(lint("check_layers", {"cpp_core/capi/capi.cc": '#include "python/bind.h"\n'})) == 1


def test_the_library_for_tensorflow_may_include_only_the_c_interface_and_base(lint):
    assert not lint("check_layers", {"cpp_core/tensorflow/wait.cc": '#include "capi/hc.h"\n#include "base/dtype.h"\n'})
    [finding] = lint("check_layers", {"cpp_core/tensorflow/wait.cc": '#include "runtime/runtime.h"\n'})
    assert "tensorflow/ is a library of its own" in finding


def test_a_folder_that_is_no_layer_is_found(lint):
    [finding] = lint("check_layers", {"cpp_core/misc/helpers.h": "\n"})
    assert "folder misc/ is no layer" in finding
