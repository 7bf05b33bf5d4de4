"""The thread that writes the program's stacks for the core."""

import os
import select
import signal
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


def test_signals_of_the_program_do_not_reach_the_thread_of_the_stacks():
    core = Core()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    watch = StackWatch(core, signal.SIGRTMAX - 3)
    try:
        assert "in test_signals_of_the_program" in core.ask()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask, "the program's own mask is as it was"
        status = Path(f"/proc/self/task/{watch._thread.native_id}/status").read_text()
        (blocked,) = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk:")]
        for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGINT):
            assert blocked >> (number - 1) & 1, f"{number.name} would end its wait"
    finally:
        watch.close()


def test_descriptors_that_the_program_has_taken_are_left_alone(tmp_path):
    watch = StackWatch(Core(), signal.SIGRTMAX - 3)
    descriptors = list(watch._files)
    files = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in descriptors]
    for file, descriptor in zip(files, descriptors, strict=True):
        os.dup2(file, descriptor)  # closes the watch's file
    watch.close()
    for file, descriptor in zip(files, descriptors, strict=True):
        assert os.fstat(file).st_size == 0
        assert os.path.sameopenfile(file, descriptor), "closed, though it is the program's"
        os.close(file)
        os.close(descriptor)
