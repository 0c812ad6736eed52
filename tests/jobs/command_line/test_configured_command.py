"""Options from a settings file and from the environment: order of the sources, names, and what neither may give."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import click
import pytest

from sediment.jobs import cli, setup
from sediment.jobs.cli import main
from sediment.jobs.command_line.configured_command import (
    SETTINGS_VARIABLE,
    ConfiguredCommand,
    command_names,
    is_settable,
    long_name,
)
from sediment.jobs.command_line.shared_options import FOR_ALL_COMMANDS
from tests.jobs.log_dirs import make_log_dir, sediment, tree
from tests.segments import batch_bytes, write_segment

SAFETY = {
    *("yes", "force", "insecure", "broker-defaults", "allow-network-fs", "allow-empty-selection", "on-corruption"),
    *("retry-quarantined", "roll-active", "undo-erasure", "hold", "abort-open-transactions", "unpin", "link"),
    *("topic-configs", "broker-configs"),
    *("secret-file", "signing-key", "tls-key", "users", "set", "now-ms", "partition", "keys-file", "where", "verdicts"),
    *("action", "replacement", "all-versions", "run", "as-of", "older-than", "since-ms"),
}


COMMANDS = (*(name for name in cli.COMMANDS if name != "setup"), *(f"setup {name}" for name in setup.COMMANDS))


def command(name: str) -> click.Command:
    found: click.Command | None = main
    for word in name.split():
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    assert found is not None
    return found


def options(name: str) -> set[str]:
    return {long_name(each) for each in command(name).params if isinstance(each, click.Option)}


def parsed(name: str, *arguments: str) -> dict[str, object]:
    return command(name).make_context(name, [*arguments]).params


def refused(name: str, *arguments: str) -> str:
    with pytest.raises(click.UsageError) as raised:
        parsed(name, *arguments)
    return raised.value.format_message()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the settings file that $SEDIMENT_SETTINGS names; it is empty."""
    file = tmp_path / "settings.toml"
    file.touch()
    monkeypatch.setenv(SETTINGS_VARIABLE, str(file))
    return file


# ------------------------------------------------------------------------------------------------------------- commands
def test_every_command_takes_settings() -> None:
    assert [name for name in COMMANDS if not isinstance(command(name), ConfiguredCommand)] == []
    assert {name.split()[-1] for name in COMMANDS} <= set(command_names())


def test_no_safety_no_secret_and_no_selection_comes_from_settings() -> None:
    known = set().union(*map(options, COMMANDS))
    assert known >= SAFETY
    settable = {long_name(each) for name in COMMANDS for each in command(name).params if is_settable(each)}
    assert not SAFETY & settable
    assert settable >= FOR_ALL_COMMANDS


# -------------------------------------------------------------------------------------------------------------- sources
def test_the_command_line_is_stronger_than_the_environment_and_this_than_the_file(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed("compact", "d")["ledger"] is None
    for text, expected in (('ledger = "top"', "top"), ('ledger = "top"\n[compact]\nledger = "table"', "table")):
        settings.write_text(text)
        assert parsed("compact", "d")["ledger"] == expected
    assert parsed("plan", "d")["ledger"] == "top"
    monkeypatch.setenv("SEDIMENT_LEDGER", "all")
    assert parsed("compact", "d")["ledger"] == "all"
    monkeypatch.setenv("SEDIMENT_COMPACT_LEDGER", "own")
    assert parsed("compact", "d")["ledger"] == "own"
    assert parsed("plan", "d")["ledger"] == "all"
    assert parsed("compact", "d", "--ledger", "given")["ledger"] == "given"


def test_flags_and_numbers_have_their_types(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.write_text("[compact]\ndry-run = true\nmax-bytes = 5\n")
    assert (parsed("compact", "d")["dry_run"], parsed("compact", "d")["max_bytes"]) == (True, 5)
    monkeypatch.setenv("SEDIMENT_COMPACT_DRY_RUN", "false")
    assert parsed("compact", "d")["dry_run"] is False


def test_an_option_names_the_file_and_the_working_directory_is_never_read(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "sediment.toml").write_text('ledger = "evil"\n')
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(SETTINGS_VARIABLE)
    assert parsed("plan", "d")["ledger"] is None
    (tmp_path / "config" / "sediment").mkdir(parents=True)
    (tmp_path / "config" / "sediment" / "sediment.toml").write_text('ledger = "mine"\n')
    assert parsed("plan", "d")["ledger"] == "mine"
    settings.write_text('ledger = "other"\n')
    assert parsed("plan", "d", "--settings", str(settings))["ledger"] == "other"


def test_the_source_of_each_value_is_shown_with_v(
    settings: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.write_text("[dump]\nlimit = 3\n")
    monkeypatch.setenv("SEDIMENT_DUMP_WHAT", "records")
    with command("dump").make_context("dump", ["p", "-v"]):
        pass
    assert caplog.messages == ["--what is from SEDIMENT_DUMP_WHAT", f"--limit is from {settings}"]
    assert logging.getLogger("sediment").level == logging.NOTSET


# --------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ledgr = 1", "'ledgr' is unknown; did you mean ledger?"),
        ("dry-run = true", "'dry-run' is not an option of all commands"),
        ("force = true", "'force' is not allowed in a settings file; give --force on the command line"),
        ("[compact]\nforce = true", "'force' is not allowed in a settings file"),
        ("[compact]\ndryrun = true", "in [compact] 'dryrun' is unknown; did you mean dry-run?"),
        ("[compat]\ndry-run = true", "'compat' is not a command; did you mean compact?"),
        ("[compact]\nmax-bytes = 'x'", "(from "),
        ("a = [", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused(settings: Path, text: str, said: str) -> None:
    settings.write_text(text + "\n")
    message = refused("compact", "d")
    assert said in message and str(settings) in message


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("SEDIMENT_LEDGR", "unknown; did you mean SEDIMENT_LEDGER?"),
        ("SEDIMENT_DRY_RUN", "not an option of all commands; set SEDIMENT_COMPACT_DRY_RUN"),
        ("SEDIMENT_COMPACT_DRYRUN", "did you mean SEDIMENT_COMPACT_DRY_RUN?"),
        ("SEDIMENT_COMPACT_WORDS", "SEDIMENT_COMPACT_WORDS is unknown"),
        ("SEDIMENT_FORCE", "give --force on the command line"),
        ("SEDIMENT_COMPACT_BROKER_DEFAULTS", "give --broker-defaults on the command line"),
        ("SEDIMENT_SET", "give --set on the command line"),
    ],
)
def test_a_wrong_variable_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, said: str) -> None:
    monkeypatch.setenv(variable, "1")
    message = refused("compact", "d")
    assert said in message and variable in message


@pytest.mark.parametrize(
    "variable",
    [
        *("SEDIMENT_PORT", "SEDIMENT_SERVICE_HOST", "SEDIMENT_PORT_9092_TCP_ADDR", "SEDIMENT_COMPACT_SERVICE_PORT"),
        *(
            "SEDIMENT_DUMP_WHATEVER",
            "SEDIMENT_KERNEL_CACHE",
            "SEDIMENT_TRACEBACK",
            "SEDIMENT_POOL",
            "SEDIMENT_SCHEDULE",
        ),
    ],
)
def test_variables_of_kubernetes_of_other_commands_and_of_other_programs_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    assert parsed("compact", "d")["ledger"] is None


def test_a_file_that_does_not_exist_is_refused_if_it_was_named(tmp_path: Path) -> None:
    assert "does not exist" in refused("compact", "d", "--settings", str(tmp_path / "none"))


def test_the_default_file_is_refused_where_others_can_change_it_and_is_used_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SETTINGS_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert parsed("compact", "logs")["quiet"] is False, "there is no file"
    file = tmp_path / "config" / "sediment" / "sediment.toml"
    file.parent.mkdir(parents=True)
    file.write_text("quiet = true")
    assert parsed("compact", "logs")["quiet"] is True
    for opened, mode in ((file, 0o644), (file.parent, 0o755), (file.parent.parent, 0o755)):
        opened.chmod(0o777)
        said = refused("compact", "logs")
        assert said == (
            f"the settings file {file} is not read, because others can change it: every user can change {opened} (mode "
            "777); name the file with --settings or in SEDIMENT_SETTINGS"
        )
        assert parsed("compact", "logs", "--settings", str(file))["quiet"] is True
        opened.chmod(mode)


def test_a_wrong_name_ends_the_command_with_2_and_nothing_on_stdout(settings: Path) -> None:
    settings.write_text("x = 1\n")
    done = sediment("plan", "d", "--json")
    assert (done.status, done.stdout) == (2, "")


def test_a_config_that_is_not_on_the_command_line_names_no_log_directory(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path / "source", 0, [batch_bytes(0)])
    write_segment(tmp_path / "source", 1, [batch_bytes(1)])
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"})
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={log_dir}\nlog.retention.ms=1\n")
    monkeypatch.setenv("SEDIMENT_CONFIG", str(config))
    before = tree(log_dir)
    done = sediment("expire", "--yes")
    assert done.status == 2 and "--config is not on the command line" in done.stderr
    assert tree(log_dir) == before
    assert sediment("expire", log_dir, "--dry-run").status == 0


def test_an_option_that_may_be_repeated_takes_one_value_or_a_list(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.write_text('config = "/etc/one"\n')
    assert parsed("plan", "d")["configs"] == (Path("/etc/one"),)
    settings.write_text('config = ["/etc/one", "/etc/two"]\n')
    assert parsed("plan", "d")["configs"] == (Path("/etc/one"), Path("/etc/two"))
    monkeypatch.setenv("SEDIMENT_CONFIG", "/etc/three:/etc/four")
    assert parsed("plan", "d")["configs"] == (Path("/etc/three"), Path("/etc/four"))
    assert parsed("plan", "d", "--config=a", "--config=b")["configs"] == (Path("a"), Path("b"))


# ----------------------------------------------------------------------------------------------------- repeated options
@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_with_one_value_must_not_be_given_twice(name: str) -> None:
    for option in command(name).params:
        if not isinstance(option, click.Option) or option.multiple or (option.is_flag and not option.secondary_opts):
            continue
        value = [] if option.is_flag else ["7"]
        for spelling in (*option.opts, *option.secondary_opts):
            twice = (spelling, *value, option.opts[0], *value)
            assert f"--{long_name(option)} is given 2 times" in refused(name, *twice)


def test_a_flag_may_be_given_again_and_an_option_that_is_a_list_too() -> None:
    values = parsed("plan", "d", "--json", "--json", "--topic=a", "--topic=b")
    assert values["as_json"] is True and values["topics"] == ("a", "b")


def test_a_repeated_option_ends_a_command_before_it_reads_anything(tmp_path: Path) -> None:
    assert "--settings is given 2 times" in refused("plan", "d", "--settings=a", "--settings=b")
    done = sediment("plan", tmp_path, "--now-ms=1", "--now-ms=1", "--json")
    assert (done.status, done.stdout) == (2, "") and "--now-ms is given 2 times" in done.stderr
    assert "--hold is given 2 times" in refused("clone", "d", "--to=x", "--hold", "--no-hold")


def test_no_option_is_taken_for_the_value_of_another(tmp_path: Path) -> None:
    said = refused("compact", "d", "--keep-before", "--force")
    assert "--keep-before needs a value, but is followed by --force; give its value" in said
    assert "--topic needs a value" in refused("plan", "d", "--topic", "a", "--topic", "--json")
    assert parsed("plan", "d", "--topic", "--a")["topics"] == ("--a",)


# -------------------------------------------------------------------------------------------------------- the main line
def test_a_misspelt_command_gets_the_nearest_name() -> None:
    done = sediment("plna")
    assert done.status == 2 and "Did you mean 'plan'?" in done.stderr


@pytest.mark.parametrize("name", setup.COMMANDS)
def test_the_former_name_of_a_command_of_setup_says_the_new_one(name: str) -> None:
    done = sediment(name, "bash")
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr == f"sediment: {name} is a command of setup; run: sediment setup {name}\n"


def test_the_help_groups_the_commands_by_task() -> None:
    text = sediment("--help").stdout
    titles = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert titles == ["Options", "Look", "Clean and repair", "Undo", "Move", "Serve", "Set up"]
    assert all(re.search(rf"^  {name}  ", text, re.MULTILINE) for name in cli.COMMANDS)


def test_the_version_is_short_and_with_verbose_has_those_of_packages_in_either_order() -> None:
    short = sediment("--version").stdout
    assert short.startswith("sediment, version ") and short.count("\n") == 1
    long = sediment("--version", "--verbose").stdout
    assert long.startswith(short) and "\nnumba " in long and "\nJava " in long
    assert sediment("-v", "--version").stdout == long


# ----------------------------------------------------------------------------------------------------------------- help
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_lists_the_options_of_the_command_before_the_common_ones(name: str) -> None:
    text = sediment(*name.split(), "--help").stdout
    own, _, common = text.partition("\nCommon options:\n")
    first = re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", own, re.MULTILINE)
    last = re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", common, re.MULTILINE)
    assert {"help", "settings", "verbose"} <= set(last)
    assert not {*first} & FOR_ALL_COMMANDS
    listed = {each for option in command(name).params if isinstance(option, click.Option) for each in option.opts}
    assert {f"--{each}" for each in first + last} >= {each for each in listed if each.startswith("--")}
