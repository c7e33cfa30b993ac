"""Untrusted files: nothing loaded executes, no path leaves its folder, all is escaped or quoted."""

import html.parser
import io
import json
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from experiments.harness.executors import skypilot, slurm
from tests.data.read.catalogue_test import ToyArchive
from tests.data.toy import source_settings
from tests.faults.storage_test import pickled
from tests.tools.convert import llama
from tests.tools.reports.workdirs import make
from tests.whole.command_line import call
from transformer_jax.data.read import catalogue
from transformer_jax.data.read.sources import PAIRS
from transformer_jax.tools.cloud.bucket import Code
from transformer_jax.tools.cloud.flags import parse
from transformer_jax.tools.cloud.jobs import start_script
from transformer_jax.tools.pages.page import page
from transformer_jax.tools.reports import compare, report

NASTY = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "<img src=x onerror=alert(1)>",
    "\"quotes\" 'and' \\ backslashes \\u003c \\",
    "line\u2028 and paragraph\u2029 separators",
    "{title} {data} %s ${x} &lt; مرحبا & שלום",
]
WORDS = ["a b", 'it\'s "quoted"', "$(touch x)", "`touch x`", ";touch x;", "a\nb", "*", "\\"]
WORDS += ["é\t#c: d", "{f} ${HOME}", "--x=a=b", "'", "a&&b|c>d", "!x", "~", ""]
EVENTS = set[str]()  # what an audit hook, which cannot be taken off, has seen of this process


@sys.addaudithook
def _watch(event, arguments):
    if event in ("pickle.find_class", "os.system", "subprocess.Popen"):
        EVENTS.add(event)


@pytest.mark.parametrize("array", [b"", b"\x93NUMPY"])
def test_no_file_of_a_folder_to_import_is_a_program(tmp_path, monkeypatch, capsys, array):
    """Neither what the loader of others would unpickle, nor the code that a config names."""
    monkeypatch.chdir(tmp_path)
    program, folder = pickled(array), llama.checkpoint(tmp_path / "theirs")
    contents = {path: path.read_bytes() for path in folder.iterdir()}
    for name in "training_args.bin pytorch_model.bin model.pt optimizer.pt x.npz".split():
        (folder / name).write_bytes(program)
    for name in "modeling_x.py tokenization_x.py __init__.py setup.py conftest.py".split():
        (folder / name).write_text("import os; os.mkdir('executed')")
    automatic = {"AutoModelForCausalLM": "modeling_x.X", "AutoTokenizer": "tokenization_x.X"}
    named = {"auto_map": automatic, "trust_remote_code": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    flags = "--mode=import", f"--checkpoint={folder}"
    EVENTS.clear()
    assert call(*flags, "--workdir=sound") == 0
    for path, sound in contents.items():
        path.write_bytes(program)
        assert call(*flags, "--workdir=ours") == 1
        path.write_bytes(sound)
    config = json.loads((folder / "config.json").read_text())
    for more in named.items():
        (folder / "config.json").write_text(json.dumps(config | dict([more])))
        assert call(*flags, "--workdir=ours") == 1
    (folder / "model.safetensors").unlink()
    assert call(*flags, "--workdir=ours") == 1
    assert "is pickled, which may run any program" in capsys.readouterr().err
    assert call(*flags, "--workdir=ours", "--pickled") == 1
    assert "not a whole file of PyTorch" in capsys.readouterr().err
    assert not Path("executed").exists() and not EVENTS


def test_an_index_names_no_file_of_another_folder(tmp_path, capsys):
    folder, secret = llama.checkpoint(tmp_path / "theirs"), llama.checkpoint(tmp_path / "secret")
    (folder / "model.safetensors").unlink()
    for name in ("../secret/model.safetensors", f"{secret}/model.safetensors", "x/../../secret"):
        index = {"weight_map": dict.fromkeys(llama.SHAPES, name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={tmp_path}/ours") == 1
        assert f"{folder / Path(name).name}: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["up", "absolute", tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_an_archive_puts_nothing_outside_of_its_folder(tmp_path, monkeypatch, kind):
    """As the sets of TFDS come, which are unpacked where they are prepared."""
    outside = tmp_path / "outside"
    outside.mkdir()
    names = {"up": "../../../../../../outside/a", "absolute": str(outside / "a")}
    monkeypatch.setattr(ToyArchive, "archive", tmp_path / "corpus.tgz", raising=False)
    with tarfile.open(ToyArchive.archive, "w:gz") as archive:
        link, entry = tarfile.TarInfo("corpus.en"), tarfile.TarInfo(names.get(kind, "corpus.en/a"))
        link.type, link.linkname, entry.size = kind, str(outside), 4
        if kind not in names:
            archive.addfile(link)
        archive.addfile(entry, io.BytesIO(b"mine"))
    settings = source_settings("tfds", tmp_path / "x/x/x", name="toy_archive")
    with pytest.raises((OSError, ValueError)):
        list(catalogue.read(settings, ("train",), PAIRS))
    assert not list(outside.iterdir())


class Elements(html.parser.HTMLParser):
    """The elements and attributes of a page as a browser has them, and its data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.data = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))

    def handle_data(self, data):
        if dict(self.tags[-1][1] if self.tags else ()).get("id") == "data":
            self.data += data


@pytest.mark.parametrize("text", NASTY)
def test_a_page_is_the_same_elements_whatever_its_texts_are(tmp_path, text, undrawn):
    """Those of `report`; and of any page, whose title and data they are."""
    pages = []
    for texts in ("a", text):
        runs = []
        for word in (f"{texts}0", f"{texts}1"):
            name = word.replace("/", "_")
            run = make(tmp_path / name, model={"residual": word}, diagnostics=2, samples=word)
            for file, content in {
                "samples.jsonl": {"step": 2, "samples": [[word, [word]]]},
                "replay.json": {"step": 2, "found": word},
                "run.json": {"labels": [{word: word, "seed": word}]},
                "results.json": {"status": word, "steps": 20, f"test/{word}": 1.0, word: word},
                "metrics.jsonl": {"step": 2, f"train/{word}": 1.0},
            }.items():
                (run / file).write_text(json.dumps(content) + "\n")
            runs.append(str(run))
        output = tmp_path / "page.html"
        assert report.main([*runs, f"--output={output}"]) == 0
        assert compare.main([*runs, f"--output={tmp_path / 'figure'}"]) == 0
        pages.append(Elements(output.read_text("utf-8")))
    assert pages[0].tags == pages[1].tags
    statuses = [run["status"] for run in json.loads(pages[1].data)["runs"]]
    assert statuses == [f"{text}0", f"{text}1"]
    data = {"texts": [*NASTY, "half a pair: \ud83d"]}
    titled = page(text, data)
    assert titled.encode()  # UTF-8 lacks half of a pair
    assert Elements(titled).tags == Elements(page("a", {})).tags
    assert json.loads(Elements(titled).data) == data


def run_by_bash(script, folder):
    """The words that a script passes to what it starts, which stands in for the rest."""
    show = "printf '%s\\0' "
    functions = 'for name in gcloud sha256sum tar mkdir cd; do eval "$name() { :; }"; done\n'
    functions += f'bash() {{ {show} "$@"; }}\nsrun() {{ {show} "$@"; }}\n'
    command = ["bash", "-c", functions + script.replace("./launch.sh", show)]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    assert not list(folder.iterdir())
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("word", WORDS)
def test_every_launcher_passes_words_on_as_they_are(tmp_path, monkeypatch, word):
    """To the hosts of a slice, to tasks of Slurm and to jobs of SkyPilot."""
    home, config = f"gs://bucket/{word}x".replace("\n", " "), f"--config.x={word}"
    command = ["train", "--config=configs/default.py", f"--workdir={home}", config]
    zone = ["--accelerator=v6e-8", "--zone=z", "--project=p", "--dry_run"]
    launch, _ = parse([*zone, f"--create={shlex.join([word])}", *command])
    assert launch.create == (word,)
    words = run_by_bash(start_script(launch, Code(b"", b""), 0, "attempt"), tmp_path)
    assert words[1:3] == ["start", f"{home}/launch"] and words[-4:] == command

    scripts = []

    def sbatch(words, input, **_):
        scripts.append(input)
        return subprocess.CompletedProcess(words, 0, "", "")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", sbatch)
        slurm._submit([], ["python", *command], "name", tmp_path, None, [])
    assert run_by_bash(scripts[0], tmp_path)[-6:-1] == ["python", *command]

    experiment = ["experiment", "name", f"--runs_dir={home}", config]
    field = word.replace("=", "") + "x"
    task = yaml.safe_load(skypilot.task(word, experiment, "gs://bucket/x", [f"{field}={word}"]))
    assert (task["name"], task["resources"]) == (word, {field: word})
    line = f"./launch.sh {task['run'].partition('./launch.sh ')[2]}"
    mounted = [one.replace("gs://bucket", "/bucket") for one in experiment]
    assert run_by_bash(line, tmp_path) == mounted
