"""A program that gets a signal, Ctrl-C by default, at a given moment, for a process of its own."""

import signal
import sys


def interrupt_in(function, number=signal.SIGINT):
    """Sends a signal when a function of that name is called."""

    def watch(frame, event, arg):
        if event == "call" and frame.f_code.co_name == function:
            sys.setprofile(None)
            signal.raise_signal(number)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore it
    sys.setprofile(watch)
