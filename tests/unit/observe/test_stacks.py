"""The thread that writes the stacks of the program for the core."""

import os
import select
import signal
import threading
from pathlib import Path

from horocache.core.stack_watch import StackWatch


class Core:
    """Asks for stacks as the core does."""

    def watch_stacks(self, number, file, ask, answer, own_folder):
        self.file, self.asked, self.answer = file, ask, answer

    def ask(self):
        os.eventfd_write(self.asked, 1)
        assert select.select([self.answer], [], [], 20)[0], "the thread does not answer"
        os.eventfd_read(self.answer)
        return os.pread(self.file, 1 << 16, 0).decode()


def test_the_stack_thread_blocks_the_signals_of_the_program():
    core = Core()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    before = set(threading.enumerate())
    watch = StackWatch(core, signal.SIGRTMAX - 3)
    try:
        assert "in test_the_stack_thread" in core.ask()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask, "the mask of the program's thread has changed"
        (thread,) = set(threading.enumerate()) - before
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        (blocked,) = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk:")]
        for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGINT):
            assert blocked >> (number - 1) & 1, f"{number.name} would end the wait of the thread"
    finally:
        watch.close()


def test_descriptors_that_the_program_has_reopened_are_not_closed(tmp_path):
    core = Core()
    watch = StackWatch(core, signal.SIGRTMAX - 3)
    descriptors = [core.file, core.asked, core.answer]
    files = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in descriptors]
    for file, descriptor in zip(files, descriptors, strict=True):
        os.dup2(file, descriptor)  # closes the watch's file
    watch.close()
    for file, descriptor in zip(files, descriptors, strict=True):
        assert os.fstat(file).st_size == 0
        assert os.path.sameopenfile(file, descriptor), "the watch has closed a file of the program"
        os.close(file)
        os.close(descriptor)
