"""The subcommands of ``foreload``: parse arguments, call, print."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import foreload
from foreload.cli.arguments import (
    budgets,
    check_plot,
    check_writable,
    examples,
    exclude_each_other,
    given,
    pair,
    paragraphs,
    room_on_disk,
    typed,
    whole,
    within_memory,
    write_result,
)
from foreload.cli.help import Command, Group
from foreload.cli.profile.command import EXAMPLES, profile
from foreload.record.progress import ProgressBar, track
from foreload.record.units import quantity, size

__all__ = ["app"]

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=examples("foreload doctor /data/photos", "foreload profile train.py", "foreload bench --help"),
)
command = partial(app.command, cls=Command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"foreload {foreload.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A PyTorch data loader that knows what comes next."""


@command(
    epilog=examples("foreload synth /data/photos --images 1000", "foreload synth /data/rows --tensors 10000,100")
)
def synth(
    folder: Annotated[Path, typer.Argument(help="The folder to write to.", metavar="DIR")],
    images: Annotated[
        int | None, typer.Option(help="Number of photo-like JPEGs, in class folders.", **whole(1))
    ] = None,
    tensors: Annotated[str | None, typer.Option(help="ROWS,COLUMNS of x.npy, with labels in y.npy.")] = None,
    text: Annotated[int | None, typer.Option(help="Number of lines in lines.txt.", **whole(1))] = None,
    hdf5: Annotated[str | None, typer.Option(help="ROWS,COLUMNS of data.h5.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same data.", **whole(0))] = 0,
    force: Annotated[bool, typer.Option(help="Write beside other files, and over other data.")] = False,
) -> None:
    """Make synthetic data that loads like real data."""
    from foreload.bench import synth as data

    if all(kind is None for kind in (images, tensors, text, hdf5)):
        raise typer.BadParameter("nothing to make: give --images, --tensors, --text or --hdf5")
    room = room_on_disk(folder)
    table = None if tensors is None else pair("--tensors", tensors, 4, room)
    datasets = None if hdf5 is None else pair("--hdf5", hdf5, 1, room)  # float32, compressed
    with given("DIR"):
        if images is not None:
            data.synth_images(folder, images, seed=seed, force=force)
        if table is not None:
            data.synth_tensors(folder, *table, seed=seed, force=force)
        if text is not None:
            data.synth_text(folder, text, seed=seed, force=force)
        if datasets is not None:
            data.synth_hdf5(folder, *datasets, seed=seed, force=force)
    # (The hidden one marks the folder as synthetic.)
    files = [file for file in folder.rglob("[!.]*") if file.is_file()]
    written = sum(file.stat().st_size for file in files)
    typer.echo(f"{folder}: {quantity(len(files), 'file', 'files')}, {size(written)}")


@command(
    epilog=examples(
        "foreload bench",
        "foreload bench /data/photos --batch-size 128 --json bench.json",
        "foreload bench --dataset-size 10000,100",
    )
)
def bench(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Class folders of JPEGs; synthetic ones by default.", metavar="DIR", exists=True, file_okay=False
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="Number of synthetic images if no DIR is given; 2000 by default.", **whole(1)),
    ] = None,
    dataset_size: Annotated[
        str | None, typer.Option(help="ROWS,COLUMNS: tensors in memory instead of images.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per batch.", **whole(1))] = 64,
    num_workers: Annotated[
        int | None, typer.Option(help="Number of workers; one per core by default.", **whole(1))
    ] = None,
    seeds: Annotated[int, typer.Option(help="Epochs per contestant, each with its own seed.", **whole(1))] = 3,
    multi_seed: Annotated[bool, typer.Option("--multi-seed", help="Use at least ten seeds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a plot into this file (PNG).")] = None,
    steps: Annotated[bool, typer.Option("--steps", hidden=True)] = False,  # for `foreload serve`
) -> None:
    """Compare stock torch with foreload in every configuration, on images or on tensors in memory."""
    from foreload.bench.contestants import IMAGE_CONTESTANTS, TENSOR_CONTESTANTS, Work, check_images
    from foreload.bench.synth import synth_images
    from foreload.machine import granted_cores, granted_memory

    check_writable(json=json, plot=plot)
    check_plot(plot)
    work = Work(batch_size=batch_size, workers=num_workers or granted_cores())
    seeds = max(seeds, 10) if multi_seed else seeds
    exclude_each_other(**{"DIR": folder, "--images": images, "--dataset-size": dataset_size})
    if dataset_size is not None:
        rows, columns = pair(
            "--dataset-size", dataset_size, 12, granted_memory()
        )  # drawn as float64, then float32
        _bench(TENSOR_CONTESTANTS, work._replace(rows=rows, columns=columns), seeds, "rows", json, plot, steps)
        return
    if folder is not None:
        with given("DIR"):
            check_images(folder)
        _bench(IMAGE_CONTESTANTS, work._replace(folder=str(folder)), seeds, "images", json, plot, steps)
        return
    with tempfile.TemporaryDirectory() as temporary:
        synth_images(Path(temporary), 2000 if images is None else images)
        _bench(IMAGE_CONTESTANTS, work._replace(folder=temporary), seeds, "images", json, plot, steps)


@command(epilog=examples("foreload plan /data/photos", "foreload plan 1000000 --budget 10%,25% --order zipf"))
def plan(
    what: Annotated[str, typer.Argument(help="A folder of images, or a number of samples.", metavar="DIR_OR_N")],
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="Cache budgets: 25%, 8GiB (of a folder), or 500 (samples, of a number of them); repeat it or use "
            "commas. By default 5% to 100%."
        ),
    ] = None,
    order: Annotated[
        str, typer.Option(help="Order of samples: permutation, replacement, weighted or zipf.")
    ] = "permutation",
    epochs: Annotated[int, typer.Option(help="Epochs to simulate; figures leave out the first.", **whole(2))] = 8,
    ranks: Annotated[int, typer.Option(help="Ranks that share an epoch, each with a cache.", **whole(1))] = 1,
    keep: Annotated[str, typer.Option(help="Form of cached images: auto, encoded or decoded.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the order.", **whole(0))] = 0,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a plot into this file (PNG).")] = None,
) -> None:
    """Predict hit rate and time for every cache size and policy. Loads some images of DIR to measure them."""
    from foreload.bench import curves
    from foreload.options import POLICIES

    if order not in curves.order_kinds():
        raise typer.BadParameter(f"--order must be one of {', '.join(curves.order_kinds())}, got {order!r}")
    if keep not in ("auto", "encoded", "decoded"):
        raise typer.BadParameter(f"--keep must be auto, encoded or decoded, got {keep!r}")
    check_writable(json=json, plot=plot)
    check_plot(plot)
    samples = _samples(what, keep, ranks)
    count = len(samples.sizes)
    if count < ranks:
        raise typer.BadParameter(f"--ranks must be at most the number of samples, {count}, got {ranks}")
    sizes = budgets(budget, int(samples.sizes.sum()), least=int(samples.sizes.min()), bytes_known=samples.known)
    with within_memory("plan for fewer samples, or with fewer --epochs: hit rates depend on the cache's share"):
        known = curves.draw_order(order, count, epochs, ranks, seed)  # type: ignore[arg-type]
        with ProgressBar("plans", len(sizes) * len(POLICIES)) as progress:
            points = curves.curves(samples, known, sizes, progress.advance)
    _console().print(curves.table(points, samples))
    about = {"what": what, "samples": count, "order": order, "epochs": epochs, "ranks": ranks, "seed": seed}
    write_result("json", json, curves.write_json, points, about)
    write_result("plot", plot, curves.plot, points, samples)
    if plot is not None:
        print(f"plot: {plot}")
    least = curves.enough(points)
    if len(sizes) == 1:
        print("--budget 0 is the run without a cache; give budgets above 0 to compare it with")
    elif least is None:
        print("every step of memory pays: even the last saves 5% or more of the time without a cache")
    else:
        amount = curves.amount(least, samples)
        print(f"beyond {amount}, more memory saves less than 5% of the time without a cache")
    print("\n".join(curves.recommended_cache(points, samples, keep, ranks)))  # type: ignore[arg-type]


command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    help=paragraphs(profile.__doc__),
    epilog=examples(*EXAMPLES),
)(profile)


@command(epilog=examples("foreload doctor", "foreload doctor /data/photos"))
def doctor(
    path: Annotated[
        Path, typer.Argument(help="A file or folder of your data.", metavar="PATH", exists=True)
    ] = Path(),
) -> None:
    """Report what this machine offers for loading data, and what each missing feature costs."""
    from foreload.cli.doctor import FINDINGS, examine, table

    Console().print(table(track(examine(path), "looking", total=FINDINGS, after=1)))


@command(epilog=examples("foreload serve", "foreload serve --host 0.0.0.0 --port 8080"))
def serve(
    port: Annotated[int, typer.Option(help="The port to listen on; 0: any free one.", **whole(0, 65535))] = 5000,
    host: Annotated[
        str, typer.Option(help="The address to listen on; beyond this machine, the page needs the token.")
    ] = "127.0.0.1",
    token: Annotated[
        bool,
        typer.Option("--token", help="Require the token on this machine too, if others use it."),
    ] = False,
) -> None:
    """Show the published loaders of this machine (loader.publish()) on a live page."""
    try:
        from foreload.cli.serve.app import serve as run
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "plotly"):
            raise
        raise ImportError(f"foreload serve needs {error.name}: pip install starlette uvicorn plotly") from None
    with typed(host="--host"):
        run(host, port, token=token, say=lambda address: print(f"foreload serve: {address}", flush=True))


@command(epilog=examples("foreload pack /data/photos /data/shards --shard-size 1GiB"))
def pack(
    source: Annotated[
        Path, typer.Argument(help="A folder of files, or of class folders.", metavar="SRC", exists=True)
    ],
    folder: Annotated[Path, typer.Argument(help="The folder for the shards.", metavar="DST", file_okay=False)],
    tiled: Annotated[
        bool,
        typer.Option(
            "--tiled", help="Write tiled JPEGs, of which only what a crop needs is decoded; same pixels."
        ),
    ] = False,
    shard_size: Annotated[str, typer.Option(help="The size from which a shard is full.")] = "256MiB",
    verify: Annotated[bool, typer.Option(help="Read each shard back and compare.")] = True,
) -> None:
    """Write files as tar shards with an index for random access; resume an interrupted run."""
    from foreload.datasets.tar.pack import pack as make
    from foreload.options import parse_bytes

    try:
        full = parse_bytes(shard_size, name="--shard-size")
    except ValueError:
        full = 0
    if full < 1 or "%" in shard_size:
        raise typer.BadParameter(
            f"--shard-size must be a size of at least 1 byte, such as 1GiB, got {shard_size!r}"
        )
    with typed(source="SRC", folder="DST"):
        packed = make(source, folder, shard_bytes=full, tiled=tiled, verify=verify)
    count = len(packed.shards)
    already = f", {packed.resumed} of them already there" if packed.resumed else ""
    if packed.resumed == count:
        already = ", already there"
    tiles = f", {packed.tiled} tiled" if tiled else ""
    print(
        f"{folder}: {quantity(packed.samples, 'sample', 'samples')} in "
        f"{quantity(count, 'shard', 'shards')}{already}{tiles}; "
        f"{size(packed.bytes_after)}, {size(packed.bytes_before)} before"
    )


def _console() -> Console:
    output = Console()
    return output if output.is_terminal else Console(width=130)  # a file or pipe has no width of its own


def _samples(what: str, keep: str, ranks: int) -> Any:
    from foreload.bench.curves import SampleCosts, measure_folder

    if what.isdigit():
        if not 1 <= int(what) <= 1 << 40:
            raise typer.BadParameter(f"DIR_OR_N must be at least 1 sample, at most {1 << 40:,}, got {what}")
        with within_memory("plan for fewer samples: hit rates depend on the share that the cache holds"):
            return SampleCosts.alike(int(what), ranks)
    if not Path(what).is_dir():
        raise typer.BadParameter(f"DIR_OR_N must be a folder of images or a number of samples, got {what!r}")
    with given("DIR_OR_N"):
        return measure_folder(Path(what), keep)  # type: ignore[arg-type]


def _bench(
    contestants: Sequence[Any],
    work: Any,
    seeds: int,
    unit: str,
    json: Path | None,
    plot: Path | None,
    steps: bool,
) -> None:
    from foreload.bench import show
    from foreload.bench.contestants import present
    from foreload.bench.measure import compare

    everyone, contestants = contestants, present(contestants)
    epochs = len(contestants) * (seeds + 1) + 1
    done = itertools.count(1)

    def advance() -> None:
        progress.advance()
        if steps:
            print(f"{next(done)}/{epochs}", flush=True)

    with ProgressBar(f"{len(contestants)} contestants, epochs", epochs) as progress:
        results = compare(contestants, work, seeds, advance)
    output = _console()
    output.print(show.table(results, unit))
    output.print()
    output.print(show.legend(results))
    if absent := [contestant.name for contestant in everyone if contestant not in contestants]:
        print(f"Left out, since there is no GPU: {'; '.join(absent)}")
    output.print()
    write_result("json", json, show.write_json, results, work)
    write_result("plot", plot, show.plot, results, unit)
    if plot is not None:
        print(f"plot: {plot}")
    print(show.sentence(results, unit))
