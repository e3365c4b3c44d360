"""Whether a checkpoint is of this run: settings are compared, and those of older code are known."""

import pytest
from etils import epath

from hyla_lm.checkpoint.checkpoint import check_same_run, differences
from hyla_lm.config.declare import as_dict
from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig

HERE = epath.Path("run")


def identity(**fields: object) -> dict[str, object]:
    return {"ModelConfig": as_dict(ModelConfig(**fields)), "data": {"rows": "a"}}


def without(saved: dict, *names: str) -> dict:
    model = {name: value for name, value in saved["ModelConfig"].items() if name not in names}
    return {**saved, "ModelConfig": model}


def test_a_setting_that_is_newer_than_a_checkpoint_has_its_default_there() -> None:
    older = without(identity(), "scan_layers", "value_dim")
    check_same_run(older, identity(), HERE)
    assert differences(older, identity()) == []
    with pytest.raises(UserError, match=r"scan_layers = False but this run has True"):
        check_same_run(older, identity(scan_layers=True), HERE)


def test_what_is_no_setting_has_no_default() -> None:
    with pytest.raises(UserError, match=r"data\.rows = 'b' but this run has 'a'"):
        check_same_run({**identity(), "data": {"rows": "b"}}, identity(), HERE)
    with pytest.raises(UserError, match=r"data\.rows = None but this run has 'a'"):
        check_same_run({**identity(), "data": {}}, identity(), HERE)
