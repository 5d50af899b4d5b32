"""What every verb does alike: --debug, exit codes, option names, completion, grouped help."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import pytest

from stepscope.analysis.questions import QUESTIONS
from stepscope.commands.main import VERBS, cli, main
from stepscope.commands.options import OTHER
from stepscope.commands.run import GROUPS

MISSING = [
    ["report", "nowhere"],
    ["info", "nowhere"],
    ["show", "idle", "nowhere"],
    ["compare", "nowhere", "nowhere"],
    ["memory", "nowhere"],
    ["view", "nowhere"],
    ["query", "nowhere", "SELECT 1"],
    ["hangs", "nowhere"],
    ["attach", "nowhere"],
    ["trigger", "nowhere"],
    ["monitor", "--live", "nowhere"],
    ["cache", "list", "nowhere"],
]


def command_of(verb):
    return cli.get_command(click.Context(cli), verb)


@pytest.mark.parametrize("words", MISSING, ids=lambda words: words[0])
def test_what_is_not_there_ends_alike(words, capsys):
    assert main(words) == 3
    said = capsys.readouterr().err
    assert said.startswith("stepscope: nowhere: no such ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--debug", "report", "nowhere"],
        ["report", "--debug", "nowhere"],
        ["report", "nowhere", "--debug"],
        ["cache", "list", "nowhere", "--debug"],
        ["cache", "--debug", "list", "nowhere"],
    ],
    ids=" ".join,
)
def test_debug_may_stand_anywhere(words, capsys):
    assert main(words) == 3
    assert "Traceback" in capsys.readouterr().err
    assert main([word for word in words if word != "--debug"]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_debug_of_the_command_that_is_run_is_left_to_it(capfd):
    words = ["run", "--no-report", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])"]
    assert main([*words, "--debug"]) == 0
    assert capfd.readouterr().out == "['--debug']\n"


@pytest.mark.parametrize("verb", list(VERBS))
def test_one_name_for_one_thing(verb):
    options = {
        name: option
        for option in command_of(verb).params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
    }
    assert "--limit" not in options
    if "--output" in options:
        assert "-o" in options
        assert options["--output"].name in {"file", "output"}
    if "--rows" in options:
        assert "all" in options["--rows"].metavar


@pytest.mark.parametrize("words", [["info", "a.json"], ["doctor"]])
def test_an_ending_that_this_verb_does_not_offer_is_refused(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    offers_files = any("-o" in option.opts for option in command_of(words[0]).params)
    assert main([*words, "-o", "report.HTML"]) == 2
    said = capsys.readouterr().err
    assert ("html is not offered here: choose table" in said) == offers_files
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_run_is_shown_and_not_started(tmp_path, capsys):
    assert main(["monitor", "--count", "1", str(tmp_path)]) == 0
    assert "no run" in capsys.readouterr().out


def test_an_option_for_another_form_is_refused(capsys):
    assert main(["doctor", "--dialect", "megatron"]) == 2
    assert "--dialect applies to --config only" in capsys.readouterr().err


def test_the_help_of_run_is_grouped(capsys, monkeypatch):
    # Click keeps the option that the first context has made, here that of another test.
    monkeypatch.setattr(command_of("run"), "_help_option", None)
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"\n{heading}:\n") for heading in GROUPS]
    assert places == sorted(places)
    _, _, rest = text.partition(f"\n{OTHER}:\n")
    assert [line.split()[0] for line in rest.splitlines() if line.startswith("  -")] == ["-h,"]
    listed = {
        name for option in command_of("run").params for name in option.opts if name[:2] == "--"
    }
    assert {name for name in listed if name not in text} == {"--debug"}


def test_the_help_of_run_names_all_words():
    named = {option.name: option.metavar for option in command_of("run").params}
    assert named["window_recorder"] == "torch|cuda-range|tracemalloc|none"
    assert named["key_averages_by"] == "name|shape|source|both|recorded"


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_has_one_name_in_the_help(verb):
    folders = {"--output-dir", "--scratch", "--to", "--allow", "--tensorboard-dir"}
    for option in command_of(verb).params:
        is_moment = option.metavar == "MOMENT"  # of `memory --from A --to B`
        if folders & set(option.opts) and not (is_moment or isinstance(option.type, click.Choice)):
            assert option.metavar == "DIR", option.opts


def completions(words: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", "from stepscope.commands.main import main; main([])"],
        env={
            **os.environ,
            "_STEPSCOPE_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
    )
    return [line.partition(",")[2] for line in ended.stdout.splitlines()]


def test_completion_knows_verbs_options_and_questions():
    assert set(VERBS) <= set(completions("stepscope "))
    assert completions("stepscope sho") == ["show"]
    assert "--columns" in completions("stepscope show --col")
    assert completions("stepscope show oper") == ["operators", "operators-by-shape"]
    names = [one.name for one in QUESTIONS if one.name.startswith("c")]
    assert completions("stepscope show c") == names


def test_columns_of_the_live_view_keep_their_order():
    from types import SimpleNamespace

    from stepscope.report.live import _part_names

    def view(shares):
        partition = SimpleNamespace(
            parts=[SimpleNamespace(name=name) for name in shares],
            share=lambda part: shares[part.name],
        )
        return SimpleNamespace(progress=SimpleNamespace(partition=partition))

    before = {"other": 0.5, "backward": 0.2, "input": 0.1, "forward": 0.2}
    after = {"other": 0.1, "backward": 0.1, "input": 0.6, "forward": 0.2}
    order = ["input", "forward", "backward", "other"]
    assert _part_names([view(before)]) == _part_names([view(after)]) == order


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_live_view_cuts_nothing(width, tmp_path, capsys, monkeypatch):
    from tests.support.step_records import step_records, write_run

    phases = {"forward": 10, "backward": 15, "optimizer": 5, "communication": 3}
    records = step_records([100] * 12, waits_ms=[60] * 12, phases_ms=phases)
    run = write_run(tmp_path, dict.fromkeys(range(3), records))
    words = ["monitor", "--live", "--loop", "0.05", str(run)]
    assert main(words) == 0
    piped = capsys.readouterr().out
    assert "communication" in piped
    assert "finished" in piped
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "…" not in piped + shown
    assert "finished" in shown
    table = [line for line in shown.splitlines() if "finished" in line]
    assert len(table) == 3
    assert all(len(line) <= width and line.count("%") == 6 for line in table)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGPIPE")
def test_a_reader_that_goes_away_ends_with_141(tmp_path):
    from tests.support.gpu_trace import GpuTrace, us

    trace = GpuTrace()
    for _ in range(3):
        with trace.step():
            trace.op("aten::mm").launch("sgemm", us(100))
    file = tmp_path / "a.json"
    file.write_bytes(trace.json())
    program = f"{sys.executable} -m stepscope"
    # More than a pipe holds; a short answer may be written before the reader goes.
    for words in (
        f"query {file} 'SELECT * FROM range(1000000)' --format csv",
        f"show kernels {file}",
    ):
        ended = subprocess.run(
            ["bash", "-c", f"{program} {words} | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}"],
            check=False,
            capture_output=True,
            text=True,
            timeout=250,
        )
        # A short answer may be written before the reader goes.
        assert ended.stdout.strip() in ({"141"} if "range" in words else {"141", "0"}), ended.stderr
        assert ended.stderr == ""


def options_of(command):
    yield from (one for one in command.params if isinstance(one, click.Option))
    for sub in getattr(command, "commands", {}).values():
        yield from options_of(sub)


@pytest.mark.parametrize("verb", VERBS)
def test_a_default_in_seconds_has_its_unit(verb):
    """`30 s` everywhere, and neither `30.0` nor `300`."""
    command = command_of(verb)
    for option in options_of(command):
        name = max(option.opts, key=len)
        if option.metavar == "SECONDS" or name.endswith("-s"):
            words = option.get_help_record(click.Context(command))[1]
            default = re.search(r"\[default: ([^\]]*)\]", words)
            assert default is None or re.search(r"\d s(;|$)|^no limit$", default[1]), words
            assert option.metavar == "SECONDS", name


@pytest.mark.parametrize("verb", VERBS)
def test_ranks_are_a_selection_everywhere(verb):
    """How many ranks there are is the world size, as in torch."""
    for option in options_of(command_of(verb)):
        if "--ranks" in option.opts:
            assert option.type.convert("0,3", option, click.Context(command_of(verb))) == "0,3"
