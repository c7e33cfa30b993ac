"""What every test runs under: the CPU, quick compilation, and no silent broadcasting."""

import contextlib
import gc
import os
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from transformer_jax.process import machine, progress

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiling is what takes the time in most tests.
jax.config.update("jax_disable_most_optimizations", True)
# Tracing makes objects by the million that live on; looking through them for garbage as often as
# Python does by default took up to 8 % of the time of a file.
gc.set_threshold(50_000, 20, 50)
# Of memory; about half of what Linux allows, since a file's tests may take ten thousand.
_MOST_MAPS = 30_000
# For the processes that tests start
os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
if jax.__version_info__ < (0, 11):  # later ones have the new emitters alone, and abort
    # Of code that runs for a moment, the old ones make half as much work, and so does one thread,
    # since xdist's workers have the others. What is optimised after all runs as fast at LLVM's
    # first level, and takes a third of the time to compile.
    quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    quick += " --xla_backend_optimization_level=1"
    os.environ["XLA_FLAGS"] = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), quick)))


def pytest_collection_modifyitems(items):
    """Long trainings first, then files of long tests alone: so both workers end together."""
    short = {item.path for item in items if not item.get_closest_marker("long")}
    long = {i.path for i in items if "whole" in i.path.parts or "optimised" in i.fixturenames}
    items.sort(key=lambda item: (item.path not in long, item.path in short))


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory) -> Path:
    """The folder where all processes that tests start keep what they have compiled.

    They, too, seldom collect garbage. And PyTorch, which is installed for tests to compare with, is
    hidden from them: whatever trains would import it, for seconds.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which all workers share
    hidden = tmp_path_factory.mktemp("hidden")
    (hidden / "torch.py").write_text("raise ModuleNotFoundError")
    (hidden / "sitecustomize.py").write_text(f"import gc; gc.set_threshold(*{gc.get_threshold()})")
    paths = str(hidden), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    return folder / "compiled"


@pytest.fixture(scope="module", autouse=True)
def few_maps():
    """Forgets what was compiled, once it has taken much of what Linux allows a process.

    A compiled program takes several memory maps. Beyond `vm.max_map_count`, 65,530 by default, the
    next one crashes the process; a worker that runs half of all tests came that far.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module")
def compiled_once(compiled):
    """What one test has compiled, another takes from the disk, as a second process would."""
    settings = {
        "jax_compilation_cache_dir": str(compiled),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # which JAX would go on with, whatever the config says


@pytest.fixture
def optimised():
    """Programs of this test are optimised: where it trains for longer than it compiles."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def phases(monkeypatch) -> list[str]:
    """The phases that progress is asked to show, as they begin."""
    names = []

    @contextlib.contextmanager
    def phase(what):
        names.append(what)
        yield

    monkeypatch.setattr(progress, "phase", phase)
    return names


@pytest.fixture
def limit(monkeypatch):
    """A function that gives this machine so many bytes of memory, all or some of them free.

    At first it has 24 GiB.
    """

    def set_limit(whole, free=None):
        memory = machine.Memory(whole, whole if free is None else free)
        monkeypatch.setattr(machine, "memory", lambda: memory)

    set_limit(24 * 2**30)
    return set_limit


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves empty files in place of figures, which take a second each."""
    from transformer_jax.tools.reports import figures

    def save(figure, stem):
        for kind in ("png", "svg"):
            Path(f"{stem}.{kind}").touch()

    monkeypatch.setattr(figures, "save", save)


@pytest.fixture
def forget():
    """A function after which this process knows the library's rows alone, as it does in the end."""
    from transformer_jax.config import rows

    before = {name: dict(table) for name, table in rows.TABLES.items()}

    def forget():
        rows._sources.clear()
        rows._owners.clear()
        for name, table in rows.TABLES.items():
            table.clear()
            table.update(before[name])

    yield forget
    forget()
