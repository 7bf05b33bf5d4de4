"""The analysis finds an access without the lock, where there is a clang."""

import shutil

import pytest

PROJECT = 'version = "1.0"\n'
MUTEX = """
struct __attribute__((capability("mutex"))) Mutex {
  void Lock() __attribute__((acquire_capability()));
  void Unlock() __attribute__((release_capability()));
};
struct Box {
  Mutex mutex;
  int value __attribute__((guarded_by(mutex))) = 0;
};
"""

needs_clang = pytest.mark.skipif(
    not any(shutil.which(f"clang++{suffix}") for suffix in ("", *(f"-{version}" for version in range(14, 26)))),
    reason="no clang++ (Debian: clang)",
)


@needs_clang
def test_an_access_without_the_lock_is_found_with_file_and_line(lint):
    text = MUTEX + "int Read(Box& box) { return box.value; }\n"
    [finding] = lint("check_thread_safety", {"pyproject.toml": PROJECT, "cpp_core/base/box.cc": text})
    assert finding.startswith("cpp_core/base/box.cc:10: reading variable 'value' requires holding mutex")


@needs_clang
def test_an_access_with_the_lock_is_allowed(lint):
    text = MUTEX + "int Read(Box& b) { b.mutex.Lock(); int v = b.value; b.mutex.Unlock(); return v; }\n"
    assert lint("check_thread_safety", {"pyproject.toml": PROJECT, "cpp_core/base/box.cc": text}) == []
