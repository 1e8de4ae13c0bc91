"""Variables of the environment that the user's code names are compared in processes that are not forked."""

from __future__ import annotations

import json
from pathlib import Path

from tests.programs import python

SET = """
import json, multiprocessing, os, pickle, sys
from foreload.dataset_state.program.state import ProgramState

class Sample:
    def __getitem__(self, index): return os.environ.get("SAMPLE_MODE"), os.environ.get("SAMPLE_SIZE")

def compare(sent): return pickle.loads(sent).differs()

if __name__ == "__main__":
    os.environ["SAMPLE_MODE"] = "train"
    found = []
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        def look(): found.append(pool.apply(compare, (pickle.dumps(ProgramState(Sample())),)))
        look()
        os.environ["SAMPLE_SIZE"] = "1"
        look()
        del os.environ["SAMPLE_SIZE"]
        os.environ["".join(["not", "named"])] = "1"
        look()
        del os.environ["SAMPLE_MODE"]
        look()
    json.dump(found, sys.stdout)
"""


def test_variables_that_were_set_or_deleted_are_found(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SET)
    done = python(tmp_path / "script.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    elsewhere = "is not what it is here in a process that is not forked"
    size, mode = (f"os.environ[{name!r}] {elsewhere}" for name in ("SAMPLE_SIZE", "SAMPLE_MODE"))
    assert json.loads(done.stdout) == [None, size, None, mode]
