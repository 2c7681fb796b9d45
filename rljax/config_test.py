import dataclasses
from typing import Literal

import pytest

from rljax import config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optim:
    lr: float
    warmup: int = 0
    schedule: Literal["constant", "cosine"] = "constant"
    betas: tuple[float, float] = (0.9, 0.999)
    weights: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.lr < 0:
            raise config.ConfigError(f"lr={self.lr}; wants 0 or more")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    model: str
    optim: Optim
    limit: int | None = None
    name: str | tuple[str, ...] = "x"


def written(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return path


GOOD = "model: m\noptim:\n  lr: 1e-6\n"


def test_reads_yaml_then_overrides(tmp_path):
    run = config.load(Run, written(tmp_path, GOOD), ["optim.warmup=3", "limit=7", "name=[a, b]"])
    assert run == Run(model="m", optim=Optim(lr=1e-6, warmup=3), limit=7, name=("a", "b"))


def test_dump_reads_back_to_the_same_config(tmp_path):
    run = config.load(
        Run, written(tmp_path, GOOD), ["optim.weights={a: 1}", "optim.betas=[0.8, 0.9]"]
    )
    assert config.load(Run, written(tmp_path, config.dump(run))) == run
    assert run.optim.weights == {"a": 1.0}


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        (GOOD, "optim.warmpu=1", "unknown field optim.warmpu; did you mean warmup?"),
        (
            GOOD,
            "optim.schedule=cosin",
            "optim.schedule='cosin'; choose one of 'constant', 'cosine'",
        ),
        (GOOD, "model=3", "model=3 is int, wants str"),
        (GOOD, "optim.lr=fast", "optim.lr='fast' is str, wants float"),
        (GOOD, "optim.lr=-1", "optim.lr=-1.0; wants 0 or more"),
        (GOOD, "optim.warmup=true", "optim.warmup=True is bool, wants int"),
        (GOOD, "optim.betas=[1]", "optim.betas=[1]; wants 2 values"),
        (GOOD, "optim=3", "optim=3; wants the fields of Optim"),
        (GOOD, "model.x=3", "model has no fields"),
        (GOOD, "model", "override 'model' is not of the form a.b=value"),
        ("optim:\n  lr: 1.0\n", "limit=1", "missing field model"),
        ("- 1\n", "limit=1", "holds a list"),
        ("a: [\n", "limit=1", "is not valid YAML"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, text, override, message):
    with pytest.raises(config.ConfigError) as error:
        config.load(Run, written(tmp_path, text), [override])
    assert message in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(config.ConfigError, match="no config file at"):
        config.load(Run, tmp_path / "none.yaml")
