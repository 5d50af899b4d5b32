"""Arguments in five dialects: flags, defaults, precedence, origins, rules, decorators."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.adapters.options.dialect import (
    BOTH,
    LIST,
    OPTIONS,
    SWITCH,
    WORD,
    options_as_text,
)
from stepscope.adapters.options.dialects import DIALECTS, find_dialect
from stepscope.adapters.options.settings import misspelled_variables, resolve, settings_of
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import (
    ConfigError,
    as_text,
    option,
    options_of,
    parse_size,
    size_as_text,
)
from stepscope.commands.main import main
from stepscope.errors import UsageError


@pytest.fixture(autouse=True)
def _empty_place(tmp_path, monkeypatch):
    """No variables of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    import os

    for name in list(os.environ):
        if name.startswith("STEPSCOPE_"):
            monkeypatch.delenv(name)


def parsed(words, dialect="native", parser=None):
    parser = parser or argparse.ArgumentParser(exit_on_error=False)
    stepscope.add_arguments(parser, dialect)
    return parser.parse_args(words)


def config_of(words, dialect="native", **more):
    return stepscope.Profiler.from_args(parsed(words, dialect), **more).config


# -- the table ------------------------------------------------------------------------------------


def test_every_field_of_the_capture_is_an_option_or_code_only():
    code_only = {"coordinates", "on_trace_ready"}
    fields = {field.name for field in dataclasses.fields(CaptureConfig)}
    assert {one.name for one in OPTIONS.values() if one.is_field} == fields - code_only


def test_an_option_is_one_field():
    @dataclasses.dataclass(frozen=True)
    class More(CaptureConfig):
        colour: str = option("red", "Colour of the step.", choices=("red", "blue"))
        most_bytes: int | None = option(None, "Greatest size.", kind="size", least=10)

    options = options_as_text(More)
    assert list(options)[: len(OPTIONS)] == list(OPTIONS)
    colour, most = options["colour"], options["most_bytes"]
    assert (colour.kind, colour.default, colour.help) == ("word", "red", "Colour of the step.")
    assert (most.kind, most.default, most.is_optional) == ("size", None, True)
    assert most.parse("1KiB", "here") == 1024
    with pytest.raises(ConfigError, match="colour='green' is unknown: choose one of red, blue"):
        More(colour="green")
    with pytest.raises(ConfigError, match="most_bytes=9 is too small: give 10 or more"):
        More(most_bytes=9)
    assert More(most_bytes=None).options()["colour"] == "red"


def test_the_class_describes_each_of_its_options():
    for one in options_of(CaptureConfig).values():
        assert f"\n        {one.name}: {one.about}" in CaptureConfig.__doc__


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_names_only_options_that_exist_and_its_defaults_work(name):
    dialect = DIALECTS[name]
    assert {flag.option for flag in dialect.flags} <= set(OPTIONS)
    assert set(dialect.defaults) <= set(OPTIONS)
    config = stepscope.Profiler.from_args(parsed([], name)).config
    assert not config.enabled
    for setting, value in dialect.defaults.items():
        if OPTIONS[setting].is_field and setting != "output_dir":
            assert getattr(config, setting) == value


@pytest.mark.parametrize("name", DIALECTS)
def test_every_flag_of_every_dialect_reaches_its_option(name):
    others = {"word": None, "path": "elsewhere", "ranks": "1", "words": "cpu"}
    others["size"] = "2MB"
    for flag in DIALECTS[name].flags:
        option = OPTIONS[flag.option]
        if flag.style in {SWITCH, BOTH}:
            words, wanted = [flag.names[-1]], flag.on
        elif flag.style == WORD:
            words, wanted = [flag.names[-1], "true"], flag.on
        else:
            number = "11" if option.name == "start_step" else "12"
            text = option.choices[-1] if option.choices else others.get(option.kind, number)
            words, wanted = [flag.names[-1], text or "name"], option.parse(text or "name", "")
        setting = settings_of(parsed(words, name)).settings[flag.option]
        assert setting.value == wanted
        assert setting.origin == flag.names[0]


# -- what the guides say --------------------------------------------------------------------------


def test_fsdp_qlora_by_default_waits_7_warms_up_2_records_1_for_ever():
    config = config_of(["--profile", "true"], "fsdp-qlora")
    assert (config.wait, config.warmup, config.active, config.repeat) == (7, 2, 1, 0)
    assert config.step_unit == "micro-batch"
    assert config.export_trace
    assert not config.record_shapes


def test_fsdp_qlora_frequency_counts_only_without_repeat():
    flags = ["--profile", "true", "--profiling_frequency", "20", "--wait_steps", "3"]
    assert config_of(flags, "fsdp-qlora").wait == 17
    assert config_of([*flags, "--repeat", "2"], "fsdp-qlora").wait == 3


def test_help_of_a_yes_or_no_flag_names_no_other_values(capsys):
    parser = argparse.ArgumentParser()
    stepscope.add_arguments(parser, dialect="fsdp-qlora")
    parser.print_help()
    said = " ".join(capsys.readouterr().out.split())
    about = "Draw memory by category over time. Implies stacks and shapes. [default: false]"
    assert f"--export_memory_timeline [true|false] {about}" in said


def test_fsdp_qlora_memory_timeline_overrides_stack_and_shapes():
    words = ["--export_memory_timeline", "true", "--with_stack", "false", "--with_shapes=false"]
    arguments = parsed(words, "fsdp-qlora")
    config = stepscope.Profiler.from_args(arguments).config
    assert config.memory_timeline == "torch"
    assert config.with_stack
    assert config.record_shapes
    assert config.profile_memory
    assert "memory timeline" in settings_of(arguments).settings["with_stack"].origin


@pytest.mark.parametrize(("given_steps", "wanted"), [(1, 10), (9, 10), (10, 10), (11, 11)])
def test_fsdp_qlora_max_steps_leaves_room_for_a_window(given_steps, wanted):
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=-1)
    arguments = parsed(["--profile", "true", "--max_steps", str(given_steps)], "fsdp-qlora", parser)
    config = stepscope.Profiler.from_args(arguments).config
    assert config.max_steps == wanted
    assert arguments.max_steps == wanted


def test_max_steps_stays_where_nothing_is_recorded():
    arguments = parsed(["--max_steps", "3"], "fsdp-qlora")
    profiler = stepscope.Profiler.from_args(arguments)
    assert arguments.max_steps == 3
    with profiler:
        assert list(profiler.watch(range(20))) == [0, 1, 2]


def test_megatron_by_default_is_rank_0_after_one_iteration():
    config = config_of(["--torch-profile", "--tensorboard-dir", "board"], "megatron")
    assert (config.skip_first, config.wait, config.warmup, config.active) == (1, 0, 1, 1)
    assert (config.repeat, config.ranks) == (1, (0,))
    assert str(config.output_dir) == str(config.tensorboard_dir) == "board"
    ranks = config_of(["--torch-profile-ranks", "0", "1"], "megatron").ranks
    assert ranks == (0, 1)


def test_hf_by_default_records_everything_on_the_first_rank_of_each_node():
    config = config_of(["--enable-profiling"], "hf")
    assert (config.wait, config.warmup, config.active, config.repeat) == (5, 2, 3, 1)
    assert config.ranks == "node-first"
    assert config.step_unit == "optimizer step"
    assert all((config.record_shapes, config.profile_memory, config.with_stack, config.with_flops))
    assert not config.memory_log
    assert config.memory_log_steps == 10


def test_sfm_writes_for_tensorboard_only_if_asked():
    assert config_of(["--profiling"], "sfm").tensorboard_dir is None
    config = config_of(["--profiling", "--ptensorboard", "--prof_dir", "./prof_other"], "sfm")
    assert str(config.output_dir) == "prof_other"
    assert str(config.tensorboard_dir) == "prof_other/tensorboard"


# -- precedence -----------------------------------------------------------------------------------


def test_flag_before_environment_before_default(monkeypatch):
    for name, value in (("WAIT", "21"), ("WARMUP", "22"), ("MAX_WINDOW_BYTES", "2GB")):
        monkeypatch.setenv(f"STEPSCOPE_{name}", value)
    settings = resolve(find_dialect("hf"), {"wait": ("31", "--profiler-wait-steps")})
    found = {name: (row.value, row.origin) for name, row in settings.settings.items()}
    assert found["wait"] == (31, "--profiler-wait-steps")
    assert found["warmup"] == (22, "STEPSCOPE_WARMUP")
    assert found["max_window_bytes"][0] == 2_000_000_000
    assert found["ranks"] == ("node-first", "default of hf")
    assert found["repeat"] == (1, "default")


def test_the_parser_shows_what_would_hold(monkeypatch):
    monkeypatch.setenv("STEPSCOPE_WAIT", "21")
    assert parsed([], "hf").profiler_wait_steps == 21
    assert config_of([], "hf").wait == 21
    assert config_of(["--profiler-wait-steps", "5"], "hf").wait == 5


def test_what_code_changes_in_the_arguments_holds(monkeypatch):
    monkeypatch.setenv("STEPSCOPE_WARMUP", "3")
    arguments = parsed(["--profile"])
    arguments.profile_wait = 9
    config = stepscope.Profiler.from_args(arguments, active=4).config
    assert (config.wait, config.warmup, config.active) == (9, 3, 4)


def test_a_foreign_namespace_needs_its_dialect():
    arguments = argparse.Namespace(torch_profile=True, torch_profile_wait=4, lr=0.1)
    with pytest.raises(UsageError, match="megatron"):
        stepscope.Profiler.from_args(arguments)
    config = stepscope.Profiler.from_args(arguments, dialect="megatron").config
    assert config.enabled
    assert config.wait == 4
    as_mapping = stepscope.Profiler.from_args(vars(arguments), dialect="megatron").config
    assert as_mapping == config


def test_arguments_stay_plain_values():
    values = json.loads(json.dumps(vars(parsed(["--profile", "--profile-ranks", "0", "2"]))))
    assert (values["profile"], values["profile_ranks"]) == (True, [0, 2])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WAIT", "soon", "whole number"),
        ("WAIT", "true", "whole number"),
        ("WITH_STACK", "perhaps", "true or false"),
        ("MAX_WINDOW_BYTES", "much", "500MB"),
        ("TRACE_FORMAT", "xml", "json.gz"),
    ],
)
def test_mistakes_in_variables_are_told(monkeypatch, name, value, message):
    monkeypatch.setenv(f"STEPSCOPE_{name}", value)
    with pytest.raises(ConfigError, match=message):
        resolve(find_dialect("native"), {})


def test_a_mistake_in_a_variable_names_it(monkeypatch):
    monkeypatch.setenv("STEPSCOPE_ACTIVE", "many")
    with pytest.raises(ConfigError, match="STEPSCOPE_ACTIVE"):
        resolve(find_dialect("native"), {})
    monkeypatch.setenv("STEPSCOPE_WIAT", "1")
    monkeypatch.setenv("STEPSCOPE_WAIT", "1")
    (line,) = misspelled_variables()
    assert line == "the variable STEPSCOPE_WIAT is not an option: did you mean STEPSCOPE_WAIT?"


@pytest.mark.parametrize(
    ("dialect", "flags", "message"),
    [
        ("fsdp-qlora", ["--active_steps", "0"], "argument --active_steps: 0 is too small: give 1"),
        ("fsdp-qlora", ["--wait_steps", "x"], "argument --wait_steps: 'x' is not a whole number"),
        ("megatron", ["--torch-profile-warmup", "-1"], "--torch-profile-warmup: -1 is too small"),
        ("native", ["--profile-max-pause-s", "0"], "--profile-max-pause-s: 0 is not a duration"),
        (
            "fsdp-qlora",
            ["--profiling_frequency", "2", "--active_steps", "3"],
            "--profiling_frequency 2 is too short for --warmup_steps 2 and --active_steps 3: give",
        ),
        (
            "megatron",
            ["--torch-profile-ranks", "first"],
            "--torch-profile-ranks 'first' is not understood",
        ),
        (
            "native",
            ["--profile-start-step", "9", "--profile-end-step", "3"],
            "--profile-start-step 9 and --profile-end-step 3 leave no step to record",
        ),
        (
            "hf",
            ["--profiler-output-dir", "/tmp/x"],
            "STEPSCOPE_KEEP_WINDOWS=-1 is too small: give 0 or more",
        ),
    ],
)
def test_a_wrong_option_ends_the_script_with_one_line_in_its_words(
    monkeypatch, capsys, dialect, flags, message
):
    monkeypatch.setattr(sys, "argv", ["/some/where/train.py"])
    if message.startswith("STEPSCOPE_"):
        monkeypatch.setenv("STEPSCOPE_KEEP_WINDOWS", "-1")
    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect=dialect)
    with pytest.raises(SystemExit) as ended:
        stepscope.Profiler.from_args(parser.parse_args(flags))
    assert ended.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("train.py: error: ")
    assert message in line


@pytest.mark.parametrize(
    ("dialect", "flags", "wanted"),
    [
        ("megatron", ["--torch-profile-ranks"], (0,)),
        ("megatron", ["--torch-profile-ranks", "--torch-profile"], (0,)),
        ("megatron", ["--torch-profile-ranks", "1", "3"], (1, 3)),
        ("native", ["--profile-ranks"], "all"),
    ],
)
def test_a_list_without_values_is_the_default(dialect, flags, wanted):
    assert stepscope.Profiler.from_args(parsed(flags, dialect)).config.ranks == wanted


def test_a_wrong_variable_ends_the_script_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("STEPSCOPE_ACTIVE", "many")
    with pytest.raises(SystemExit):
        stepscope.add_arguments(argparse.ArgumentParser())
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "train.py: error: STEPSCOPE_ACTIVE: 'many' is not a whole number"


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ("--profiler-repeat 2", ["--profiler-repeat needs --enable-profiling"]),
        (
            "--profiler-repeat 2 --profiler-wait-steps 1",
            ["--profiler-wait-steps, --profiler-repeat need --enable-profiling"],
        ),
        ("--memory-log-steps 5", ["--memory-log-steps needs --enable-memory-logging"]),
        (
            "--profiler-repeat 2 --memory-log-steps 5",
            [
                "--profiler-repeat needs --enable-profiling",
                "--memory-log-steps needs --enable-memory-logging",
            ],
        ),
    ],
)
def test_flags_without_effect_name_the_switch_that_each_needs(flags, missing, capsys):
    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect="hf")
    stepscope.Profiler.from_args(parser.parse_args(flags.split()))
    assert capsys.readouterr().err == f"stepscope: nothing is recorded: {', and '.join(missing)}\n"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            "--wait_steps 1",
            "--wait_steps 1 has no effect: with --repeat 0, --profiling_frequency 10 makes it 7",
        ),
        (
            "--repeat 2 --profiling_frequency 30",
            "--profiling_frequency 30 has no effect: with --repeat 2, --wait_steps 7 decides",
        ),
        ("--wait_steps 7", None),
        ("--wait_steps 3 --profiling_frequency 6", None),
        ("--repeat 1 --wait_steps 1 --warmup_steps 1 --active_steps 1", None),
        ("--profiling_frequency 20", None),
        ("", None),
    ],
)
def test_flags_of_the_schedule_that_another_one_overrides_are_named(flags, line, caplog):
    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect="fsdp-qlora")
    stepscope.Profiler.from_args(parser.parse_args(["--profile", "true", *flags.split()]))
    assert caplog.messages == ([] if line is None else [f"stepscope: {line}"])


def test_a_limit_that_is_raised_is_named_as_it_was_given(caplog):
    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect="fsdp-qlora")
    args = parser.parse_args(["--profile", "true", "--max_steps", "2"])
    stepscope.Profiler.from_args(args)
    assert args.max_steps == 10
    assert caplog.messages == [
        "stepscope: --max_steps 2 is too small for one window: it becomes 10"
    ]


def test_unknown_variables_are_named_with_the_nearest_option(monkeypatch, caplog):
    monkeypatch.setenv("STEPSCOPE_ACTIV", "3")
    monkeypatch.setenv("STEPSCOPE_XYZZY", "3")
    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect="hf")
    stepscope.Profiler.from_args(parser.parse_args([]))
    assert caplog.text == ""  # nothing is recorded, so nothing is missed
    stepscope.Profiler.from_args(parser.parse_args(["--enable-profiling"]))
    assert "STEPSCOPE_ACTIV is not an option: did you mean STEPSCOPE_ACTIVE?" in caplog.text
    assert "STEPSCOPE_XYZZY is not an option" in caplog.text


def test_variables_that_the_package_reads_elsewhere_are_no_unknown_options(monkeypatch, caplog):
    sources = Path(stepscope.__file__).parent.rglob("*.py")
    pattern = re.compile(r"""environ(?:\.get\(|\[)["'](STEPSCOPE_\w+)["']""")
    read = {name for source in sources for name in pattern.findall(source.read_text("utf-8"))}
    assert {"STEPSCOPE_CACHE", "STEPSCOPE_COMPILED"} <= read
    for name in read:
        monkeypatch.setenv(name, "1")
    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect="hf")
    stepscope.Profiler.from_args(parser.parse_args(["--enable-profiling"]))
    assert "is not an option" not in caplog.text


# -- parsers --------------------------------------------------------------------------------------


def test_a_flag_that_the_script_has_already_is_told():
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    with pytest.raises(UsageError, match="--profile"):
        stepscope.add_arguments(parser)


def test_a_shared_flag_is_left_to_the_script():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=7, help="the script's own")
    arguments = parsed(["--enable-profiling", "--max-steps", "50"], "hf", parser)
    assert stepscope.Profiler.from_args(arguments).config.max_steps == 50
    assert "the script's own" in parser.format_help()


@pytest.mark.parametrize("name", DIALECTS)
def test_the_help_can_be_shown(name):
    parser = argparse.ArgumentParser()
    stepscope.add_arguments(parser, name)
    text = parser.format_help()
    for flag in DIALECTS[name].flags:
        assert flag.names[0] in text


@pytest.mark.parametrize(
    "words",
    [["--profile", "perhaps"], ["--wait_steps", "soon"], ["--wait_steps"], ["--repeat", "1.5"]],
)
def test_wrong_values_end_as_argparse_ends(words, capsys):
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parsed(words, "fsdp-qlora")


def test_an_unknown_dialect_lists_those_there_are():
    with pytest.raises(UsageError, match="fsdp-qlora"):
        stepscope.add_arguments(argparse.ArgumentParser(), "klingon")


@given(st.integers(0, 10**12))
def test_sizes_read_back(number):
    assert parse_size(str(number)) == parse_size(number) == number
    assert parse_size(f"{number}KiB") == 1024 * number
    assert parse_size(f"{number} mb") == 10**6 * number
    assert parse_size(size_as_text(number)) == number
    assert size_as_text(256 << 20) == "256MiB"


@pytest.mark.parametrize("name", OPTIONS)
def test_a_default_written_as_text_reads_back(name):
    option = OPTIONS[name]
    assert option.parse(as_text(option.default), "") == option.default


def test_click_hands_over_a_profiler():
    seen = {}

    @click.command()
    @stepscope.click_options("hf")
    @click.option("--max-steps", type=int, default=3)
    @click.option("--lr", type=float, default=0.5)
    def script(profiler, max_steps, lr):
        seen.update(config=profiler.config, max_steps=max_steps, lr=lr)

    words = ["--enable-profiling", "--profiler-wait-steps", "9", "--max-steps", "50"]
    result = CliRunner().invoke(script, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert seen["config"].enabled
    assert (seen["config"].wait, seen["config"].max_steps) == (9, 50)
    assert (seen["max_steps"], seen["lr"]) == (50, 0.5)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_click_takes_every_dialect(dialect):
    @click.command()
    @stepscope.click_options(dialect)
    def script(profiler):
        click.echo(profiler.config.enabled)

    flag = DIALECTS[dialect].flags[0]
    words = [flag.names[0]] + (["true"] if flag.style == WORD else [])
    assert CliRunner().invoke(script, words, catch_exceptions=False).output == "True\n"
    assert CliRunner().invoke(script, [], catch_exceptions=False).output == "False\n"


def test_a_main_that_parses_its_own_flags_sees_only_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["train.py", "--profiling", "--lr", "3", "--active", "2"])
    seen = {}

    @stepscope.profiled("sfm")
    def script(more, profiler):
        seen.update(argv=sys.argv, config=profiler.config, is_on=profiler.run_path is not None)
        return more

    assert script(5) == 5
    assert seen["argv"] == ["train.py", "--lr", "3"]
    assert seen["config"].active == 2
    assert seen["is_on"]
    assert sys.argv == ["train.py", "--profiling", "--lr", "3", "--active", "2"]
    assert (tmp_path / "prof").is_dir()


def test_a_main_that_takes_no_profiler_is_refused():
    with pytest.raises(UsageError, match="profiler"):
        stepscope.profiled("sfm")(lambda: None)


# -- commands -------------------------------------------------------------------------------------


def test_doctor_shows_values_and_origins(monkeypatch, capsys):
    monkeypatch.setenv("STEPSCOPE_WAIT", "21")
    monkeypatch.setenv("STEPSCOPE_WIAT", "21")
    assert main(["doctor", "--config", "--dialect", "hf", "--format", "json"]) == 0
    shown = capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(shown.out)["options"]}
    assert (rows["wait"]["value"], rows["wait"]["origin"]) == (21, "STEPSCOPE_WAIT")
    assert rows["ranks"]["origin"] == "default of hf"
    assert "STEPSCOPE_WIAT" in shown.err
    assert set(rows) == set(OPTIONS)
    assert main(["doctor", "--config"]) == 0
    assert "STEPSCOPE_WAIT" in capsys.readouterr().out


def test_doctor_tells_options_that_cannot_work(monkeypatch, capsys):
    monkeypatch.setenv("STEPSCOPE_ACTIVE", "0")
    assert main(["doctor", "--config"]) == 2
    assert "active" in capsys.readouterr().err


def test_dialects_prints_the_whole_table(capsys):
    assert main(["dialects", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in document["dialects"]] == list(DIALECTS)
    assert main(["dialects"]) == 0
    shown = capsys.readouterr().out
    for dialect in DIALECTS.values():
        assert dialect.about in shown
        for flag in dialect.flags:
            assert flag.names[0] in shown
    assert main(["dialects", "hf"]) == 0
    assert "--torch-profile" not in capsys.readouterr().out
    assert main(["dialects", "klingon"]) == 2


def test_lists_have_their_style():
    assert {flag.option for flag in DIALECTS["megatron"].flags if flag.style == LIST} == {"ranks"}


def test_flags_that_the_script_has_too_stay_on_its_command_line(monkeypatch):
    words = ["train.py", "--profiling", "--strategy=Zero", "--debug"]
    monkeypatch.setattr(sys, "argv", words)
    seen = {}

    @stepscope.profiled("sfm")
    def script(profiler):
        seen.update(argv=sys.argv, config=profiler.config)

    script()
    assert seen["argv"] == ["train.py", "--strategy=Zero", "--debug"]
    assert seen["config"].deepspeed_memory
    assert seen["config"].deepspeed_flops


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--debug"], "add_argument('--debug', action='store_true')"),
        (["--profiling", "--debug", "--steps", "3"], "--debug is left to the script as well"),
        (["--nonsense"], None),
        (["--steps", "3"], None),
    ],
)
def test_a_shared_flag_that_the_script_does_not_know_is_explained(
    monkeypatch, tmp_path, capsys, words, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", *words])

    @stepscope.profiled("sfm")
    def script(profiler):
        del profiler
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps")
        parser.parse_args()

    with contextlib.suppress(SystemExit):
        script()
    printed = capsys.readouterr().err
    if said is None:
        assert "left to the script" not in printed
    else:
        assert said in printed
        assert "unrecognized arguments: --debug" in printed


def test_a_url_as_the_output_folder_is_refused(monkeypatch):
    monkeypatch.setenv("STEPSCOPE_OUTPUT_DIR", "memory://bucket/profiles")
    with pytest.raises(ConfigError, match="is a URL: give a local folder"):
        resolve(find_dialect("native"), {}).config(enabled=True)
