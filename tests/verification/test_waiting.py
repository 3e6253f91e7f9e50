import io

import pytest

from repopt.verification.waiting import counting, paced


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(out, seconds, total=100):
    """What is written while each of `total` takes some seconds."""
    now = 0.0
    with counting("verify, steps", total, out, lambda: now) as advance:
        for _ in range(total):
            now += seconds
            advance()
    return out.getvalue()


def test_a_terminal_gets_a_bar_that_is_removed_at_the_end():
    written = shown(Terminal(), 0.5)
    assert "###############............... verify, steps: 50 of 100, 25 s left" in written
    assert written.endswith("\r\x1b[K")


def test_elsewhere_there_is_a_line_now_and_then():
    lines = shown(io.StringIO(), 1.0).splitlines()
    assert lines == [f"verify, steps: {done} of 100, {100 - done} s left" for done in (30, 60, 90)]


def test_what_is_short_is_not_shown():
    assert shown(io.StringIO(), 0.01) == ""
    assert "verify" not in shown(Terminal(), 0.01)


@pytest.mark.parametrize(("out", "lines"), [(Terminal(), [*range(12)]), (io.StringIO(), [0, 5, 10])])
def test_lines_of_progress_are_seconds_apart_but_on_a_terminal(out, lines):
    now, said = 0.0, []
    say = paced(said.append, out, lambda: now)
    for second in range(12):
        now = float(second)
        say(second)
    assert said == lines
