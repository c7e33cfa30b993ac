"""Encoders and heads of BERT's kind compute what transformers computes, in and out."""

import json

import numpy as np
import pytest
import tokenizers

import transformer_jax as tj
from tests.tools.convert.hugging_face_test import BERT, DISTILBERT, ELECTRA, ROBERTA, V
from tests.whole.command_line import call
from transformer_jax.tools.convert import commands

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

torch.set_num_threads(1)
pytestmark = pytest.mark.long

SIZES = {"bert": BERT, "roberta": ROBERTA, "electra": ELECTRA, "distilbert": DISTILBERT}
LABELS = {0: "positive", 1: "negative", 2: "else"}
SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")}
TEXTS = ["w11 w12 w13", "w20", "w30 w31 [MASK] w33 w34"]


def saved(folder, name, **more):
    """A random model of this class, as `save_pretrained` writes it, with a tokenizer."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**SIZES[kind.config_class.model_type], **more))
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    roberta = name.startswith("Roberta")
    order = [1, 0, 2, 3, 4] if roberta else range(5)  # which has pad behind the first
    words = {token: order[number] for number, token in enumerate(SPECIAL.values())}
    words |= {f"w{n}": n for n in range(len(SPECIAL), V)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    library.add_special_tokens([*SPECIAL.values()])
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", order[1]), ("[SEP]", 2)]
    )
    library.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind | SPECIAL))
    return model


def expected(model, folder):
    """A model's logits of each of TEXTS, read as the tokenizer of a folder reads them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        ids = (tokenizer(text, return_tensors="pt").input_ids for text in TEXTS)
        return [model(one).logits[0].numpy() for one in ids]


def opened(work):
    """(labels, logits at each token of TEXTS) of a work directory with a classifier."""
    run = tj.load(work)
    batch = run.batch(TEXTS)
    real = batch["inputs_segment_ids"] > 0
    logits = zip(run.logits(batch), real, strict=True)
    return run.labels, [row[tokens] for row, tokens in logits]


def close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(other).max())


HEAD, POOLER = "token_head/transform", "bert.pooler"
FLAGS = [{f"pooling_mode_{name}": True} for name in ("mean_tokens", "cls_token", "max_tokens")]
# A class, what 1_Pooling says, what is chosen, the pooling that it comes to, and what is said.
# Classes and poolings are read apart from each other: each of both is here, not each pair.
VECTORS = [
    ("BertModel", None, None, "first", [HEAD, POOLER]),
    ("BertForMaskedLM", None, "mean", "mean", []),
    ("BertForPreTraining", FLAGS[0], None, "mean", [POOLER, "Normalize too"]),
    ("BertForQuestionAnswering", {"pooling_mode": "mean"}, None, "mean", [HEAD, "qa_outputs"]),
    ("BertForNextSentencePrediction", FLAGS[1], None, "first", [HEAD, "cls.seq_relationship"]),
    ("BertForMultipleChoice", FLAGS[0], "first", "first", [HEAD, "classifier"]),
    ("ElectraForPreTraining", None, None, "first", [HEAD, "discriminator_predictions"]),
    ("BertModel", FLAGS[2], "mean", "mean", [HEAD, POOLER, "Normalize too"]),
]


@pytest.mark.parametrize(("name", "pooling", "choice", "kind", "notes"), VECTORS)
def test_vectors_are_those_of_transformers_and_what_is_left_out_is_said(
    tmp_path, capsys, name, pooling, choice, kind, notes
):
    theirs, work = tmp_path / "theirs", tmp_path / "ours"
    model, most = saved(theirs, name), 40
    if pooling is not None:
        (theirs / "1_Pooling").mkdir()
        (theirs / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        steps = [{"type": f"sentence_transformers.models.{s}"} for s in ("Pooling", "Normalize")]
        (theirs / "modules.json").write_text(json.dumps(steps))
        texts = '{"max_seq_length": 4, "do_lower_case": 1}'
        (theirs / "sentence_bert_config.json").write_text(texts)
        most, notes = 40 if choice else 4, [*notes, "do_lower_case=1"]
    flags = [f"--config.model.pooling={choice}"] * bool(choice)
    assert call("--mode=import", f"--checkpoint={theirs}", f"--workdir={work}", *flags) == 0
    said = capsys.readouterr().out
    assert all(words in said for words in notes)
    assert ("New" in said, "Not taken" in said) == (HEAD in notes, notes != [])
    tokenizer = transformers.AutoTokenizer.from_pretrained(theirs)
    for text, vector in zip(TEXTS, tj.load(work).embed(TEXTS), strict=True):
        ids = tokenizer(text, truncation=True, max_length=most, return_tensors="pt").input_ids
        with torch.no_grad():
            x = model.base_model(ids).last_hidden_state[0].numpy()
        close([vector], [x.mean(0) if kind == "mean" else x[0]])


@pytest.mark.parametrize("outputs", ["Sequence", "Token"])
@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "Electra"])
def test_a_head_with_its_labels_comes_and_goes(tmp_path, kind, outputs):
    theirs, work, back = (tmp_path / folder for folder in ("theirs", "ours", "back"))
    model = saved(theirs, f"{kind}For{outputs}Classification", id2label=LABELS)
    assert commands.import_(work, str(theirs)) == 0
    labels, logits = opened(work)
    assert labels == tuple(LABELS.values())
    # Of a class at each token the same
    close(logits if outputs == "Token" else [x[0] for x in logits], expected(model, theirs))
    assert call("--mode=export", f"--workdir={work}", f"--output={back}") == 0
    again, report = type(model).from_pretrained(back, output_loading_info=True)
    assert not any(report.values()) and again.config.id2label == LABELS
    close(expected(again, back), expected(model, theirs))


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_what_was_fine_tuned_goes_back(tmp_path, task):
    theirs, work, tuned, back = (tmp_path / name for name in ("theirs", "ours", "tuned", "back"))
    saved(theirs, "BertModel")
    assert commands.import_(work, str(theirs)) == 0
    kind = {"classification": "labelled", "tagging": "conll"}[task]
    lines = [f"{'good' if n % 2 else 'bad'} w{n} w{n + 9}" for n in range(10, 40)]
    if task == "tagging":
        lines = [f"w{n} X\nw{n + 9} O\n" for n in range(10, 40)]
    (tmp_path / "data").write_text("\n".join([*lines, ""]))
    changes = {
        "task.name": task, "checkpoint.init_from": work, "data.source": kind,
        "data.dir": tmp_path, "data.cache_dir": tmp_path / "cache", "data.train": "('data',)",
        "data.validation": "('data',)", "data.test": "()", "data.batch_size": 8,
        "train.steps": 4, "train.log_every": 2, "optimizer.learning_rate": 1e-2,
        "optimizer.schedule": "constant", "optimizer.warmup_steps": 0, "train.evaluate_every": 0,
    }  # fmt: skip
    flags = [f"--config.{key}={value}" for key, value in changes.items()]
    assert call(f"--config={work / 'config.json'}", f"--workdir={tuned}", *flags) == 0
    assert call("--mode=export", f"--workdir={tuned}", f"--output={back}") == 0
    name = {"classification": "Sequence", "tagging": "Token"}[task]
    kind = getattr(transformers, f"BertFor{name}Classification")
    model, report = kind.from_pretrained(back, output_loading_info=True)
    assert not any(report.values())
    labels, logits = opened(tuned)
    assert tuple(model.eval().config.id2label.values()) == labels
    outputs = [x if task == "tagging" else x[0] for x in logits]
    close(outputs, expected(model, back))
    assert commands.import_(tmp_path / "again", str(back)) == 0
    again = opened(tmp_path / "again")
    assert again[0] == labels
    close(again[1], logits)
    assert tj.load(tmp_path / "again").config.model.pooling == "first"


def test_an_exported_tokenizer_cuts_and_names_as_the_original_does(tmp_path):
    theirs, work, back = (tmp_path / name for name in ("theirs", "ours", "back"))
    saved(theirs, "BertForMaskedLM")
    (theirs / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert commands.import_(work, str(theirs)) == 0
    assert call("--mode=export", f"--workdir={work}", f"--output={back}") == 0
    one, other = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (theirs, back))
    assert one.model_max_length == other.model_max_length == 40
    assert one.special_tokens_map == other.special_tokens_map
    assert one.chat_template == other.chat_template is not None
    for text in [*TEXTS, " ".join(["w11"] * 50)]:
        assert one(text, truncation=True).input_ids == other(text, truncation=True).input_ids
