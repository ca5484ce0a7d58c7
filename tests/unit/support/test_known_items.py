"""Questions with known answers."""

from __future__ import annotations

from tests.support.known_items import CODE_WORDS, HEADINGS, MIXED, PARAPHRASES, make_question_sets

FOX = """# How the fox deletes files

The command removes a directory and creates another file with the same name. See `--fox-jump` and FOX_MODE.

## Notes for all readers
"""
DOG = """# Where the dog sleeps

The user changes a setting of the server and the program shows an error. See `--fox-jump` and `dog_sleep_s`.

## Notes for all readers
"""


def test_each_question_has_one_answer_that_no_other_document_gives() -> None:
    sets = make_question_sets({"fox": FOX, "dog": DOG}, seed=1, count=10)
    assert {(each.text, each.document) for each in sets[HEADINGS]} == {
        ("How the fox deletes files", "fox"),
        ("Where the dog sleeps", "dog"),
    }
    asked = {each.document: each.text for each in sets[CODE_WORDS]}
    assert "FOX_MODE" in asked["fox"]
    assert "dog_sleep_s" in asked["dog"]
    assert len(sets[MIXED]) == 6


def test_a_paraphrase_has_words_that_its_document_does_not_have() -> None:
    sets = make_question_sets({"dog": DOG}, seed=1, count=10)
    [question] = sets[PARAPHRASES]
    words = set(question.text.split())
    assert not words & {"user", "changes", "setting", "shows", "error"}
    assert "the" in words


def test_a_seed_makes_the_same_questions_again() -> None:
    documents = {
        f"{name}{number}": text.replace("the ", f"the {number} ")
        for name, text in (("fox", FOX), ("dog", DOG))
        for number in range(5)
    }
    first, again, other = (make_question_sets(documents, seed, 5) for seed in (1, 1, 2))
    assert first == again != other
