"""One run from its config to its folder: the page on which everything meets."""

import time

import jax
from rich.console import Console

from rljax.models.export import export
from rljax.train import checkpoint, offline, online, plot, samples, stop
from rljax.train.metrics import Log
from rljax.train.run_config import RunConfig
from rljax.train.setup import Setup, load_rows, make, open_folder
from rljax.train.state import TrainState

STAGES = {"sft": offline, "dpo": offline, "ppo": online}


def run(config: RunConfig, console: Console) -> int:
    """Train as configured; returns the exit code: 0 finished, 42 stopped and saved."""
    stage = STAGES[config.algorithm]
    setup = make(config)
    train, held, notes = load_rows(config, setup.tokenizer)
    stage.check(setup, train)
    resumed = open_folder(config)
    best, lower = stage.BEST[config.algorithm]
    saved = checkpoint.Checkpoints(
        setup.folder,
        keep_last=config.train.keep_last,
        keep_best=config.train.keep_best if held else 0,
        best=best,
        lower_is_better=lower,
    )
    done = saved.latest() or 0
    _say_start(console, setup, notes, resumed, done)
    shown = (held or train)[: config.train.samples]
    stops = samples.stop_table(setup)
    before = samples.sample(setup, setup.policy, shown, stops) if shown else []
    log = Log(
        setup.folder,
        total=config.train.steps,
        start=done,
        every=config.train.log_every,
        shown=stage.SHOWN[config.algorithm],
        tensorboard=config.train.tensorboard,
        console=console,
    )
    began = time.time()
    with stop.on_signals() as asked:
        try:
            last = stage.run(setup, train, held, log=log, saved=saved, stops=stops, stop=asked)
        finally:
            log.close()
            saved.close()
        if asked():
            console.print(f"stopped and saved; the same command goes on from {setup.folder}")
            return stop.EXIT_CODE
    console.print(f"trained in {time.time() - began:.0f} s")
    _finish(console, setup, last, shown, before, stops)
    return 0


def _say_start(console: Console, setup: Setup, notes, resumed: bool, done: int) -> None:
    config = setup.config
    mesh = " × ".join(f"{k} {v}" for k, v in setup.mesh.shape.items())
    count = sum(x.size for x in jax.tree.leaves(setup.policy))
    console.print(
        f"{config.algorithm.upper()}  {count / 1e6:.1f} M parameters  mesh {mesh}", highlight=False
    )
    for note in notes:
        console.print(note, highlight=False)
    if resumed and done:
        console.print(f"resuming after step {done} of {config.train.steps}", highlight=False)


def _finish(console: Console, setup: Setup, last: TrainState, shown, before, stops) -> None:
    config = setup.config
    if shown:
        after = samples.sample(setup, last.params["policy"], shown, stops)
        (setup.folder / samples.FILE).unlink(missing_ok=True)
        samples.write(setup, "before", shown, before)
        samples.write(setup, "after", shown, after)
        samples.show(console, [samples.prompt_text(setup, e) for e in shown], before, after)
    picture = plot.plot(setup.folder, config.algorithm)
    console.print(f"curves {picture}", highlight=False)
    if config.train.export:
        out = export(
            last.params["policy"],
            setup.cfg,
            setup.folder / "model",
            tokenizer=setup.tokenizer,
            generation_config=setup.generation_config,
        )
        console.print(f"model {out}", highlight=False)
