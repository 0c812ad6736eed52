"""`python -m sediment`: the command `sediment`."""

from __future__ import annotations

from sediment.jobs.process.early_signals import end_on_early_signals

end_on_early_signals()  # before the slow imports

from sediment.jobs.cli import main  # noqa: E402

if __name__ == "__main__":
    main(prog_name="sediment")
