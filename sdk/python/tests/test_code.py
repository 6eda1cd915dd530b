"""The code interpreter against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import cove
from cove import Sandbox


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


def test_variables_stay_and_the_last_expression_is_the_result(shared: Sandbox) -> None:
    assert shared.code.run("kept = [1, 2]").results == ()
    result = shared.code.run("print('out'); import sys; print('err', file=sys.stderr); kept + [3]")
    assert (result.stdout, result.stderr, result.text) == ("out\n", "err\n", "[1, 2, 3]")
    assert result.main is not None and result.main.json == [1, 2, 3]
    assert result.ok and result.duration >= 0


def test_errors_have_a_traceback_of_the_code_alone(shared: Sandbox) -> None:
    result = shared.code.run("def f():\n    return 1 / 0\nf()")
    assert result.error is not None and result.error.name == "ZeroDivisionError"
    assert "line 2, in f" in result.error.traceback and "cove" not in result.error.traceback
    with pytest.raises(cove.CodeFailed, match="SyntaxError"):
        shared.code.run("def", check=True)
    assert shared.code.run("raise SystemExit(3)").error is not None
    assert shared.code.run("'alive'").text == "'alive'"


def test_rich_forms_come_with_the_text(shared: Sandbox) -> None:
    code = """
class Rich:
    def _repr_html_(self): return '<b>bold</b>' * 5000
    def _repr_png_(self): return bytes(range(256)) * 100
    def __repr__(self): return 'rich'
display(Rich())
Rich()
"""
    first, second = shared.code.run(code).results
    assert not first.main and second.main
    for result in (first, second):
        assert result.text == "rich" and result.html == "<b>bold</b>" * 5000
        assert result.png == bytes(range(256)) * 100


def test_output_is_heard_while_the_code_runs(shared: Sandbox) -> None:
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        shared.files.write("/tmp/heard", "")

    code = "import os, time\nprint('ready')\nwhile not os.path.exists('/tmp/heard'): time.sleep(0.01)\nprint('done')"
    assert shared.code.run(code, on_stdout=hear, timeout=300).ok
    assert "".join(heard) == "ready\ndone\n"


def test_children_speak_in_order_and_cannot_take_the_input(shared: Sandbox) -> None:
    result = shared.code.run("print('a'); import subprocess; subprocess.run('echo b; cat', shell=True); print('c')")
    assert result.stdout == "a\nb\nc\n"
    result = shared.code.run("!echo shell\nawaited = __import__('asyncio').sleep(0, 'x')\nawait awaited")
    assert (result.stdout, result.text) == ("shell\n", "'x'")


@pytest.mark.parametrize(
    ("language", "define", "endless", "look", "seen"),
    [
        ("python", "n = 7", "while True: pass", "print(n)", "7\n"),
        ("python", "n = 8", "import time; time.sleep(1000)", "print(n)", "8\n"),
        ("bash", "n=9", "while true; do sleep 0.01; done", "echo $n", "9\n"),
        ("bash", "n=6", "f() { sleep 1000; echo no; }; f; echo no", "echo $n", "6\n"),
    ],
)
def test_a_time_limit_interrupts_and_keeps_variables(
    shared: Sandbox, language: cove.types.Language, define: str, endless: str, look: str, seen: str
) -> None:
    assert shared.code.run(define, language=language).ok
    result = shared.code.run(endless, language=language, timeout=0.3, check=False)
    assert result.timed_out and not result.ok and not result.context_ended and "no" not in result.stdout
    assert shared.code.run(look, language=language).stdout == seen


def test_an_interrupt_from_elsewhere_ends_the_code(shared: Sandbox) -> None:
    with shared.code.context() as context:
        begun = threading.Event()
        results: list[cove.CodeResult] = []

        def work() -> None:
            code = "print('begun')\nimport time\ntime.sleep(1000)"
            results.append(context.run(code, on_stdout=lambda _: begun.set()))

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(300)
        context.interrupt()
        thread.join(300)
        assert results[0].error is not None and results[0].error.name == "KeyboardInterrupt"
        assert not results[0].timed_out


def test_contexts_are_apart_and_end(shared: Sandbox) -> None:
    with shared.code.context(cwd="/srv", env={"WHO": "me"}) as context:
        assert context.run("import os; x = 1; (os.getcwd(), os.environ['WHO'])").text == "('/srv', 'me')"
        assert shared.code.run("'x' in globals()").text == "False"
        assert context.id in [one.id for one in shared.code.contexts()]
        with pytest.raises(cove.InvalidRequestError, match="python"):
            context.run("1", language="bash")
    assert context.id not in [one.id for one in shared.code.contexts()]
    with pytest.raises(cove.NotFoundError):
        context.run("1")


def test_code_that_ends_its_process_says_so_and_the_next_run_has_a_new_one(shared: Sandbox) -> None:
    result = shared.code.run("import os; os._exit(4)")
    assert result.context_ended and result.error is not None and "exit code 4" in result.error.value
    assert shared.code.run("1 + 1").text == "2"
    assert shared.code.run("exit 5", language="bash").context_ended


def test_a_shell_tells_its_exit_code_and_keeps_its_place(shared: Sandbox) -> None:
    assert shared.code.run("cd /usr; false", language="bash").exit_code == 1
    result = shared.code.run("pwd; echo ü >&2", language="bash")
    assert (result.stdout, result.stderr, result.exit_code) == ("/usr\n", "ü\n", 0)


def test_runs_at_once_in_one_context_wait_for_each_other(shared: Sandbox) -> None:
    with shared.code.context() as context:
        results: list[cove.CodeResult] = []
        code = "print('in'); import time; time.sleep(0.05); print('out')"
        threads = [threading.Thread(target=lambda: results.append(context.run(code))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert [result.stdout for result in results] == ["in\nout\n"] * 6


def test_forged_frames_harm_only_who_forges_them(shared: Sandbox) -> None:
    with shared.code.context() as context:
        forged = f"""
import sys
for junk in ['\\x1e', '\\x1e{context.id} ', '\\x1e{context.id} result x 1 99999999999\\n', '\\x1e{context.id} end x 1 5\\nabcde',
             '\\x1e{context.id} ' + 'z' * 100000, '\\x1e{context.id} begin y 1 0\\n']:
    sys.stdout.write(junk); sys.stdout.flush()
'survived'
"""
        assert context.run(forged).text == "'survived'"
        assert context.run("'next'").text == "'next'"
    assert shared.code.run("'others'").text == "'others'"


def test_much_output_and_many_results_are_bounded_and_said_to_be(shared: Sandbox) -> None:
    result = shared.code.run("for i in range(2000): display(i)")
    assert result.truncated and len(result.results) == 1000
    result = shared.code.run("'x' * 20_000_000")
    assert result.results != () or result.truncated


def test_nonsense_is_refused(shared: Sandbox) -> None:
    for code, language in [("a\0b", "python"), ("1", "cobol")]:
        with pytest.raises(cove.ApiError):
            shared.code.run(code, language=language)  # type: ignore[arg-type]
    with pytest.raises(cove.NotFoundError):
        shared.code._run(
            "1",
            language=None,
            context="prc_aaaaaaaaaaaaaaaaaaaa",
            timeout=None,
            check=False,
            on_stdout=None,
            on_stderr=None,
            on_result=None,
        )
    with pytest.raises(cove.InvalidRequestError, match="node"):
        shared.code.run("1", language="javascript")


@pytest.fixture(scope="module")
def equipped() -> Iterator[Sandbox]:
    """With the image that brings numpy, pandas, matplotlib and Node."""
    with Sandbox("code-interpreter", memory="1G") as made:
        yield made


def test_tables_and_plots_are_shown(equipped: Sandbox) -> None:
    table = equipped.code.run(
        "import numpy as np, pandas as pd\npd.DataFrame({'n': np.arange(3), 'square': np.arange(3) ** 2})"
    )
    assert table.main is not None and "<table" in (table.main.html or "") and "square" in (table.text or "")
    plot = equipped.code.run("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()", timeout=600)
    assert plot.ok and plot.png is not None and plot.png.startswith(b"\x89PNG\r\n")


def test_javascript_keeps_variables_awaits_and_shows_results(equipped: Sandbox) -> None:
    run = equipped.code.run
    assert run("const kept = [1, 2]; let n = 40", language="javascript").ok
    result = run("console.log('out'); console.error('err'); n += 2; ({kept, n})", language="javascript")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert result.main is not None and result.main.json == {"kept": [1, 2], "n": 42}
    assert run("await new Promise(done => setTimeout(() => done('later'), 5))", language="javascript").text
    version = run("process.version", language="javascript").text or ""
    assert int(version.strip("'\"v").split(".")[0]) >= 20


def test_typescript_runs_in_the_same_context(equipped: Sandbox) -> None:
    run = equipped.code.run
    assert run("interface Point { x: number }\nconst at: Point = {x: 7};", language="typescript").ok
    assert run("at.x * 6", language="javascript").text == "42"


def test_javascript_errors_and_time_limits_leave_the_context_alive(equipped: Sandbox) -> None:
    run = equipped.code.run
    assert run("globalThis.alive = 'yes'", language="javascript").ok
    thrown = run("function f() { throw new TypeError('wrong') }\nf()", language="javascript")
    assert thrown.error is not None and (thrown.error.name, thrown.error.value) == ("TypeError", "wrong")
    assert run("while (true) {}", language="javascript", timeout=1, check=False).timed_out
    assert run("alive", language="javascript").text == "'yes'"


def test_contexts_go_on_in_forks_with_memory_each_by_itself(shared: Sandbox) -> None:
    shared.code.run("forked = 40")
    with shared.fork(2, memory=True) as forks:
        for number, fork in enumerate(forks):
            assert fork.code.run(f"forked += {number}; forked").text == str(40 + number)
    assert shared.code.run("forked").text == "40"
