"""A real terminal of its own: progress, colours, width, Ctrl-C, and completion in bash."""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAN = [sys.executable, "-m", "meshwright", "plan"]
SMALL = [*PLAN, "--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--num-nodes", "1",
         "--global-batch-size", "64", "--seq-length", "4096",
         "--objective", "tokens_per_s_per_gpu"]  # fmt: skip  # this objective searches no levers
LONG = [*PLAN, "--model", "deepseek-v3", "--cluster", "dgx-h100", "--num-nodes", "256",
        "--global-batch-size", "8192", "--seq-length", "4096", "--top-k", "50", "--certify", "cp-sat-all",
        "--time-limit-s", "600"]  # fmt: skip
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def in_terminal(
    command: list[str],
    home: Path,
    *,
    columns: int = 170,
    when: Callable[[str], bool] = lambda _: False,
    **environment: str,
) -> tuple[str, int]:
    """What a terminal shows, and the exit code; Ctrl-C is typed once ``when`` the text says so."""
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    variables = {**kept, "TERM": "xterm-256color", "XDG_STATE_HOME": str(home), **environment}
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    child = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdin=terminal, stdout=terminal, stderr=terminal,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )  # fmt: skip
    os.close(terminal)
    try:
        return _read(screen, child, when)
    finally:
        os.close(screen)
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _read(screen: int, child: "subprocess.Popen[bytes]", when: Callable[[str], bool]) -> tuple[str, int]:
    """Everything until the terminal closes."""
    shown, typed = b"", False
    while select.select([screen], [], [])[0]:
        try:
            piece = os.read(screen, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        shown += piece
        if not typed and when(shown.decode(errors="replace")):
            os.write(screen, b"\x03")
            typed = True
    return shown.decode(), child.wait()


def test_a_terminal_shows_progress_colour_the_table_and_the_plot(tmp_path: Path) -> None:
    shown, code = in_terminal([*SMALL, "--full"], tmp_path)
    assert code == 0
    assert "best so far" in shown.partition("Llama 3.1 8B")[0]  # the progress line, taken away again
    assert COLOURS.search(shown)
    assert "step time and peak memory of each plan" in shown
    assert "Next: " in shown


def test_no_color_is_obeyed_in_a_terminal(tmp_path: Path) -> None:
    shown, _ = in_terminal(SMALL, tmp_path, NO_COLOR="1")
    coded = set(COLOURS.findall(shown))
    assert not {code for code in coded if re.search(r"[\[;](3|4|9|10)[0-9](;|m)", code)}


def test_a_terminal_of_60_columns_has_no_line_that_is_longer(tmp_path: Path) -> None:
    shown, code = in_terminal([*SMALL, "--top-k", "3", "--full"], tmp_path, columns=60)
    pieces = shown.split("\r\x1b[2K")  # a progress line has no end
    (answer,) = [COLOURS.sub("", piece) for piece in pieces if "\n" in piece]
    assert code == 0
    assert max(len(line.rstrip()) for line in answer.splitlines()) <= 60
    assert "step time and peak memory" not in answer


def test_control_c_ends_the_search_and_prints_the_best_so_far(tmp_path: Path) -> None:
    shown, code = in_terminal(LONG, tmp_path, when=lambda text: "best so far" in text)
    assert "stopping: the best so far follows" in shown
    assert code == 0, shown[-2000:]
    assert re.search(r"sure   Best of [\d,]+ of [\d,]+ searched under our model", COLOURS.sub("", shown))


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_options_and_names_of_the_catalog(tmp_path: Path) -> None:
    program = tmp_path / "meshwright"
    program.write_text(f"#!{sys.executable}\nfrom meshwright.service.cli.main import main\nmain()\n")
    program.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}",
                   "PYTHONPATH": str(ROOT / "src")}  # fmt: skip
    subprocess.run(
        ["bash", "--norc", "-c", "meshwright --install-completion && true"],  # of the shell that asks
        env=environment, check=True, capture_output=True, cwd=ROOT,
    )  # fmt: skip
    script = """
      source ~/.bashrc
      ask() {
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _meshwright_completion meshwright; echo "${COMPREPLY[*]}"
      }
      ask meshwright pl
      ask meshwright plan --glob
      ask meshwright plan --cluster dgx-h
    """
    run = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.stdout.splitlines() == ["plan plot", "--global-batch-size", "dgx-h100 dgx-h200"]
