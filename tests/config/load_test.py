"""Overrides are checked against the default config, and a work directory against its own config."""

import json
from pathlib import Path
from typing import Any

import pytest

from transformer_jax.config import kinds
from transformer_jax.config import load as overrides
from transformer_jax.config.build import optimizer_settings
from transformer_jax.configs import default
from transformer_jax.training.schedule import make_schedule

DEFAULT = "configs/default.py"


@pytest.fixture
def written(tmp_path):
    """Lines -> the name of a config file that has them, from line 4 on."""

    def write(*lines):
        first = "from transformer_jax.configs import default", "def get_config(arg=''):"
        body = "config = default.get_config()", *lines, "return config"
        text = "\n".join([*first, *(f"    {line}" for line in body)])
        (tmp_path / "c.py").write_text(text)
        return str(tmp_path / "c.py")

    return write


def _set(*texts):
    return overrides.flatten(overrides.load(DEFAULT, list(texts)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.steps=1e5", 100_000),
        ("model.dropout_rate=0", 0.0),
        ("data.packing=false", False),
        ("data.train=['a']", ("a",)),
        ("optimizer.groups=[['a',1,1e-2],['*',0,0]]", (("a", 1.0, 0.01), ("*", 0.0, 0.0))),
        ("data.dir=/a/b = c", "/a/b = c"),
        ("data.dir=7", "7"),
        ("seed=4294967295", 2**32 - 1),
        # Texts are written as in Python, too; but quotation marks may be left out.
        (r"data.document_separator=\n\n", "\n\n"),
        (r"data.document_separator='\n\n'", "\n\n"),
        ("data.prefix='say \"it\": '", 'say "it": '),
        ('data.prefix="it\'s: "', "it's: "),
        (r"data.prefix=\u00e9é\t\\n", "éé\t\\n"),
        ("data.dir=日本 \U0001f600\udc80", "日本 \U0001f600\udc80"),
        # What is none stands for itself.
        (r"data.prefix=a\x", r"a\x"),
        (r"data.prefix=\8", r"\8"),
        ("data.prefix=a\\", "a\\"),
        ("data.prefix='tis", "'tis"),
        ("model.residual='admin'", "admin"),
    ],
)
def test_text_becomes_a_value_of_the_keys_type(text, value):
    key = text.partition("=")[0]
    result = _set(text)[key]
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("modle.d_model=2", ["modle.d_model", "model.d_model"]),
        ("data.tokenizer.knd=bpe", ["data.tokenizer.knd", "data.tokenizer.kind"]),
        ("layers=2", ["layers", "model.num_layers"]),
        ("seed.x=2", ["seed.x"]),
        ("=2", ["there is no config key"]),
        ("model={'d_model': 3}", ["model is a section", "model."]),
        ("data.tokenizer=bpe", ["data.tokenizer is a section", "data.tokenizer.kind"]),
        ("mesh.data=1e12", ["mesh.data=1000000000000", "2147483647]"]),
        (f"train.steps={'9' * 400}", ["train.steps=999", "... (400 characters)"]),
        (f"train.steps={'9' * 5000}", ["train.steps=inf", "whole number"]),
        (f"optimizer.learning_rate={'9' * 400}", ["optimizer.learning_rate=999", "finite number"]),
        ("optimizer.learning_rate=1e39", ["optimizer.learning_rate=1e+39", "at most 3.4e+38"]),
        (f"{'x' * 5000}=1", ["there is no config key xxx", "... (5,000 characters)"]),
        ("checkpoint.at=(0,-1)", ["checkpoint.at=(0, -1)", "(0, 10, 500) or ('log2',)"]),
        ("train.evaluate_at=log3", ["train.evaluate_at='log3'", "steps"]),
        ("data.prefix=\udc80", ["data.prefix='\\udc80'", "text in UTF-8"]),
    ],
)
def test_a_bad_override_is_refused_with_key_value_and_remedy(text, parts):
    with pytest.raises(ValueError) as error:
        _set(text)
    assert all(part in str(error.value) for part in parts), error.value
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "bad",
    [
        {"train.steps": "7"},
        {"train.steps": True},
        {"data.train": "train"},
        {"model": {"d_model": 3}},
        {"data.dir": None},
    ],
)
def test_a_mapping_is_checked_as_strictly(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        overrides.load(DEFAULT, bad)


def test_a_derived_value_follows_the_override_or_is_told(written):
    steps = "config.train.get_ref('steps')"
    file = written(f"config.optimizer.warmup_steps = {steps} // 10")
    assert overrides.load(file, ["train.steps=50"]).optimizer.warmup_steps == 5
    every = "config.train.get_ref('evaluate_every')"
    file = written(f"config.optimizer.warmup_steps = {steps} // {every}")
    with pytest.raises(ValueError, match="c.py: ZeroDivisionError.*get_ref"):
        overrides.load(file, ["train.evaluate_every=0"])


def test_a_frozen_config_can_be_changed(written):
    file = written("import ml_collections", "config = ml_collections.FrozenConfigDict(config)")
    assert overrides.load(file, {"model.head_dim": 8}).model.head_dim == 8


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("config.model.dmodel = 3", "d_model"),
        ("config.model.d_model = 'wide'", "d_model"),
        ("1 +", r"syntax.*line 4"),
        # The most common slip: the message of ConfigDict is the whole section.
        (
            "config.model.layers = 3",
            r"no config key model.layers;.* model.num_layers.* \(c.py, line 4\)",
        ),
        ("print(config.model.layers)", r"model.layers;.* model.num_layers.* \(c.py, line 4\)"),
        ("print(config['modle'])", r"modle; the nearest are .*model.* \(c.py, line 4\)"),
        ("raise KeyError('boom')", r"KeyError\('boom'\) \(c.py, line 4\)"),
        ("raise SystemExit", r"SystemExit\(\) \(c.py, line 4\)"),
        ("raise RuntimeError('a\\nb' * 1000)", r"RuntimeError\('a.*characters\) \(c.py, line 4\)"),
        ("raise ValueError('a hint')", r"c.py: a hint \(c.py, line 4\)"),
        ("config.unlock(); del config.model.norm", r"lacks model.norm;"),
    ],
)
def test_a_mistake_in_a_config_file_is_told_in_one_line(tmp_path, written, line, part):
    with pytest.raises(ValueError, match=part) as error:
        overrides.load(written(line), {"model.d_model": 8})
    message = str(error.value)
    assert "\n" not in message and len(message.replace(str(tmp_path), "")) < 500


def test_a_mistake_in_the_config_that_one_starts_from_is_told_with_its_place(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    base = "from transformer_jax.configs.default import get_config as of\n"
    base += "def get_config():\n    return of().modle\n"
    (tmp_path / "a_base.py").write_text(base)
    (tmp_path / "c.py").write_text("import a_base\ndef get_config(arg):\n    a_base.get_config()\n")
    with pytest.raises(ValueError, match=r"modle;.* \(a_base.py, line 3\)"):
        overrides.load(str(tmp_path / "c.py"))


def test_files_that_are_no_config(tmp_path):
    with pytest.raises(FileNotFoundError, match="configs/none.py.*launch.sh configs"):
        overrides.load("configs/none.py")
    for mistyped in ("quickstart", "quikstart.py", "configs/quick_start.py:large"):
        with pytest.raises(FileNotFoundError, match="did you mean configs/quickstart.py"):
            overrides.load(mistyped)
    (tmp_path / "c.toml").touch()
    with pytest.raises(ValueError, match="not a config file"):
        overrides.load(str(tmp_path / "c.toml"))
    with pytest.raises(ValueError, match="takes no argument"):
        overrides.load("configs/default.py:big")


def test_a_name_of_the_librarys_configs_is_found_anywhere_unless_there_is_such_a_file(
    tmp_path, monkeypatch, written
):
    monkeypatch.chdir(tmp_path)
    assert overrides.load("configs/scan.py:length").model.d_model == 128
    (tmp_path / "configs").mkdir()
    Path(written("config.model.d_model = 8")).rename("configs/scan.py")
    assert overrides.load("configs/scan.py").model.d_model == 8


def test_split_takes_the_overrides_out_of_a_command_line():
    argv = ["main", "--config=c.py", "--config.a.b=1", "--mode", "train", "--config.c", "x=y"]
    argv += ["--config.d", "-1", "--workdir=w"]
    others, changes = overrides.split(argv)
    assert others == ["main", "--config=c.py", "--mode", "train", "--workdir=w"]
    assert changes == ["a.b=1", "c=x=y", "d=-1"]
    assert overrides.split(["main", "--", "--config.a=1"])[1] == []


def test_json_keeps_every_value(tmp_path):
    groups = "optimizer.groups=(('a/*',0.5,0),)"
    config = overrides.load(
        DEFAULT, ["data.train=('a','b')", "model.head_dim=8", "model.dropout_rate=0", groups]
    )
    file = tmp_path / "config.json"
    file.write_text(overrides.to_json(config))
    again = overrides.load(str(file))
    assert overrides.flatten(again) == overrides.flatten(config)
    assert overrides.difference(config, again) == []
    assert overrides.load(str(file), ["model.head_dim=None"]).model.head_dim is None
    assert again.optimizer.groups == (("a/*", 0.5, 0.0),)
    assert again.data.train == ("a", "b") and again.model.num_encoder_layers is None


# The second is from before tasks had a section of their own.
@pytest.mark.parametrize("section", [{"model": {"d_fff": 3}}, {"objective": {"a": 0, "b": 1}}])
def test_json_of_another_version_is_refused(tmp_path, section):
    (tmp_path / "config.json").write_text(json.dumps(section))
    (name,) = section
    keys = ", ".join(f"{name}.{key}" for key in section[name])
    with pytest.raises(ValueError, match=f"config.json: .* {keys}, .*another version.*--workdir"):
        overrides.load(str(tmp_path / "config.json"))


def test_a_key_that_is_added_to_the_default_changes_no_run(tmp_path, monkeypatch):
    """Neither what a config.json without it means, nor what the run is."""
    config = overrides.load(DEFAULT, {"train.steps": 7, "model.residual": "admin"})
    before, identity = overrides.flatten(config), overrides.identity(config)
    file = tmp_path / "config.json"
    file.write_text(overrides.to_json(config))
    plain = default.get_config

    def with_a_new_key(arg=""):
        config = plain(arg).unlock()
        config.model.new_key = 3
        return config.lock()

    monkeypatch.setattr(default, "get_config", with_a_new_key)
    again = overrides.load(str(file))
    assert overrides.flatten(again) == before | {"model.new_key": 3}
    assert overrides.identity(again) == identity
    overrides.check_workdir(again, overrides.load(str(file), {"data.dir": "elsewhere"}))
    changed = overrides.load(str(file), {"model.new_key": 4})
    assert overrides.identity(changed) == identity | {"model.new_key": 4}
    with pytest.raises(ValueError, match="model.new_key: 3 -> 4"):
        overrides.check_workdir(again, changed)


@pytest.mark.parametrize(
    "text",
    """
    train.log_every=3 train.evaluate_every=0 train.steps=200000 train.bad_step=skip
    checkpoint.every=3
    evaluate.batch_size=3 decode.method=greedy decode.seed=3 data.dir=elsewhere
    data.cache_dir=elsewhere data.workers=1 mesh.data=4 mesh.topology=v5e-16 model.remat=full
    model.attention_kernel=splash
    """.split(),
)
def test_a_work_directory_lets_harmless_things_change(text):
    overrides.check_workdir(overrides.load(DEFAULT), overrides.load(DEFAULT, [text]))


@pytest.mark.parametrize(
    "text",
    """
    seed=1 train.steps=10 train.accumulation_steps=2 data.source_language=fr model.residual=pre_ln
    optimizer.learning_rate=2 data.tokenizer.vocab_size=9 checkpoint.init_from=elsewhere
    train.ema_decay=0.9 train.spike_threshold=6
    """.split(),
)
def test_a_work_directory_refuses_another_run(text):
    with pytest.raises(ValueError, match=text.partition("=")[0]):
        overrides.check_workdir(overrides.load(DEFAULT), overrides.load(DEFAULT, [text]))


@pytest.mark.parametrize("key", overrides.flatten(default.get_config()))
def test_a_fork_differs_in_how_it_is_trained_and_in_nothing_of_its_state(key):
    """Of each key, another value is refused by its name, or free in a rerun, or in the list."""
    config, kind = overrides.load(DEFAULT), overrides._defaults(default.get_config)[1][key].type
    other = {int: 2**30, float: 0.7, str: "other", tuple: ("other",)}
    other[bool] = not overrides.flatten(config)[key]
    value = f"other@{12 * '0'}" if key == "rows" else other[kind]  # whose hash is what it is
    changed = overrides.replace(config, {key: value})
    schedules = "schedule learning_rate warmup_steps burn_in_steps decay_steps decay_shape"
    others = f"{schedules} stable_steps final_learning_rate weight_decay weight_decay_power"
    others = [f"optimizer.{name}" for name in f"{others} clip_norm".split()]
    others += ["train.steps"]
    lines = overrides.refused_in_fork({}, overrides.identity(changed))
    is_free = key in [*others, "train.bad_step"] or key.startswith("checkpoint.")
    is_free |= not overrides.identity(changed)  # a rerun may change it
    assert [line.partition(":")[0] for line in lines] == [key] * (not is_free)


def test_a_fork_keeps_the_steps_by_which_an_optimizer_steps():
    trunk = {"optimizer.name": "ademamix", "train.steps": 1_000}
    for steps in (600, 2_000):
        saved, ours = (
            overrides.identity(overrides.load(DEFAULT, trunk | {"train.steps": n}))
            for n in (1_000, steps)
        )
        (line,) = overrides.refused_in_fork(saved, ours)
        assert line.startswith("train.steps: ")


def test_what_was_skipped_stays_skipped():
    with pytest.raises(ValueError, match="train.bad_step: 'skip' -> 'stop'"):
        overrides.check_workdir(
            overrides.load(DEFAULT, {"train.bad_step": "skip"}), overrides.load(DEFAULT)
        )


@pytest.mark.parametrize(
    ("schedule", "most"),  # the last step from which they may grow
    [("cosine", -1), ("linear", -1), ("warmup_stable_decay", 99_000), ("halving", 100_000)],
)
def test_steps_grow_as_long_as_no_learning_rate_has_depended_on_them(schedule, most):
    changes = {"optimizer.schedule": schedule, "optimizer.decay_steps": 1_000}
    saved = overrides.load(DEFAULT, changes)
    longer = overrides.replace(saved, {"train.steps": 200_000})
    rates = [make_schedule(optimizer_settings(config)) for config in (saved, longer)]
    for reached in (0, 5_000, 98_999, 99_000, 99_001, 100_000):
        before, after = overrides.identity(saved), overrides.identity(longer)
        lines = overrides.refused(before, after, reached)
        why = f" (the learning rate of step {reached}, which is reached, depends on it)"
        assert lines == [f"train.steps: 100000 -> 200000{why}"] * (reached > most)
        # So those that were made are what the longer run would have made.
        assert lines or rates[0](reached - 1) == rates[1](reached - 1)
    with pytest.raises(ValueError, match="train.steps: 200000 -> 100000"):
        overrides.check_workdir(longer, saved)


def test_steps_do_not_grow_where_the_optimizer_goes_by_them():
    saved = overrides.load(DEFAULT, ["optimizer.name=ademamix"])
    longer = overrides.replace(saved, {"train.steps": 200_000})
    with pytest.raises(ValueError, match="every step of optimizer.name='ademamix' depends on it"):
        overrides.check_workdir(saved, longer)


@pytest.mark.parametrize("key", kinds.CHOICES)
def test_a_choice_is_one_of_its_table_and_another_is_told_them_all(key):
    leaf, choices = overrides.flatten(default.get_config())[key], kinds.CHOICES[key]
    names = leaf if isinstance(leaf, tuple) else (leaf,)
    assert leaf is None or all(name in choices for name in names)
    wrong: Any = ("nothing",) if isinstance(leaf, tuple) else "nothing"
    if key in kinds.ROWS:
        wrong = (("nothing", *kinds.ROWS[key][0][1:]),)
    message = f"^{key}='nothing' is not one of {', '.join(map(repr, choices))}$"
    with pytest.raises(ValueError, match=message):
        overrides.load(DEFAULT, {key: wrong})
