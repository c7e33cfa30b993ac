"""Questions in the formats of bAbI, SQuAD and FairytaleQA."""

import gzip
import json

import pytest

from tests.data.read.parse_test import read
from transformer_jax.data.read import parse, questions
from transformer_jax.data.read.sources import PAIRS

BABI = """1 Mary moved to the bathroom.
2 John took the milk, and left.
3 Where is Mary? \tbathroom\t1
4 John went home.
5 What has John?\tmilk,apple\t2 4
1 Ann slept.
2 Who slept?\tAnn\t1
"""


def test_a_question_of_babi_comes_with_its_story_so_far(tmp_path):
    (tmp_path / "qa").write_text(BABI)
    story = "Mary moved to the bathroom . John took the milk , and left ."
    assert read(questions.read_babi, tmp_path / "qa") == [
        (f"question: Where is Mary ? context: {story}", "bathroom"),
        (f"question: What has John ? context: {story} John went home .", "milk , apple"),
        ("question: Who slept ? context: Ann slept .", "Ann"),
    ]


def test_squad_has_all_different_answers(tmp_path):
    answers = [{"text": "blue", "answer_start": 8}, {"text": "blue"}, {"text": "is blue"}]
    entries = [{"question": " Which? ", "answers": answers}, {"question": "No?", "answers": []}]
    paragraph = {"context": "The sky is blue.\nYes.", "qas": entries}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}, indent=1))
    source = "question: Which? context: The sky is blue.\nYes."
    assert read(questions.read_squad, path) == [(source, ["blue", "is blue"])]


def fairytales(folder, questions_table, story='section,text\n1,"Once,\r\nlong ago"\n2,The end\n'):
    for name, text in (
        ("questions/val/fox-questions.csv", questions_table),
        ("section-stories/val/fox-story.csv", story),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8-sig"))
    return folder / "questions/val/fox-questions.csv"


def test_a_question_of_fairytaleqa_comes_with_the_sections_that_it_names(tmp_path):
    header = "answer4,question,cor_section,answer1,more\n"
    rows = ',"When, then?",1,long ago,\nthe end,How?,"1, 2",at the end,x\n'
    path = fairytales(tmp_path, header + rows)
    assert read(questions.read_fairytaleqa, path) == [
        ("question: When, then? context: Once, long ago", ["long ago"]),
        ("question: How? context: Once, long ago The end", ["at the end", "the end"]),
    ]
    story = tmp_path / "section-stories/val/fox-story.csv"
    assert read(questions.read_fairytales, story) == [("Once, long ago\nThe end",)]
    packed = path.with_name(f"{path.name}.gz")  # of a story that is not
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(questions.read_fairytaleqa, packed) == read(questions.read_fairytaleqa, path)


def test_a_mistake_in_fairytaleqa_is_named_with_its_place(tmp_path):
    header = "question,cor_section,answer1,answer4\n"
    with pytest.raises(ValueError, match="expected one 'answer4' among its columns question"):
        read(questions.read_fairytaleqa, fairytales(tmp_path, "question,cor_section,answer1\n"))
    with pytest.raises(ValueError, match="fox-questions.csv:0: new-line character"):
        read(questions.read_fairytaleqa, fairytales(tmp_path, f"\r{header}a,1,b,\n"))
    path = fairytales(tmp_path, f"{header}Who?,1,a,\n")
    (tmp_path / "section-stories/val/fox-story.csv").unlink()
    with pytest.raises(FileNotFoundError, match="fox-story.csv"):
        read(questions.read_fairytaleqa, path)


def test_json_lines_may_be_dicts_of_python_and_fields_patterns(tmp_path):
    path = tmp_path / "lines"
    path.write_text("""{'a': "it's", 'b1': 'x'}\n{"a": "no", "b2": "z", "b1": "y"}\n""")
    assert read(parse.read_json, PAIRS, path, "a", "b*") == [("it's", "x"), ("no", ["y", "z"])]
    with pytest.raises(ValueError, match="lines:1: there is no field 'c\\*'"):
        read(parse.read_json, PAIRS, path, "a", "c*")
    path.write_text("{'a': __import__('os')}")  # which is not called
    with pytest.raises(ValueError, match="lines:1: expected a JSON object"):
        read(parse.read_json, PAIRS, path, "a", "a")
