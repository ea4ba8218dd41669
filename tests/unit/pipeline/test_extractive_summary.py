"""A summary without a model is made of the text's own best sentences."""

from __future__ import annotations

import pytest

from switchyard.services.pipeline.samples.article_texts import ARTICLES
from switchyard.services.pipeline.text.extractive_summary import MAX_SENTENCES, MAX_WORDS, summarize
from switchyard.services.pipeline.text.plain_text import count_words, sentences

GERMAN = """Die Gezeiten entstehen durch die Anziehung des Mondes. Das Wasser der Meere hebt und \
senkt sich zweimal am Tag.

Gestern habe ich zum Mittag eine Suppe gegessen. Die Gezeiten sind bei Vollmond am stärksten, \
weil Mond und Sonne dann gemeinsam am Wasser ziehen. An manchen Küsten steigt das Wasser bei \
Flut um mehr als zehn Meter."""

ARABIC = """المد والجزر ظاهرة طبيعية تحدث في البحار والمحيطات بسبب جاذبية القمر. يرتفع ماء البحر \
مرتين كل يوم ثم ينخفض. تساهم الشمس ايضا في حدوث المد والجزر ولكن بقوة اقل من القمر.

هل يمكن استخدام المد لتوليد الكهرباء؟ نعم يمكن ذلك بواسطة توربينات توضع في البحر."""


@pytest.mark.parametrize("article", ARTICLES, ids=lambda article: article.slug)
def test_summary_is_whole_sentences_of_the_text_in_their_order(article):
    summary = summarize([article.text], article.title)
    places = [article.text.find(sentence) for sentence in sentences(summary)]
    assert places == sorted(places)
    assert -1 not in places
    assert 1 < len(places) <= MAX_SENTENCES
    assert count_words(summary) <= MAX_WORDS


@pytest.mark.parametrize("text", [GERMAN, ARABIC], ids=["German", "Arabic"])
def test_other_languages_and_scripts_are_summarised(text: str):
    summary = summarize([text])
    assert 0 < len(summary) <= len(text)
    assert all(sentence in text for sentence in sentences(summary))


def test_sentences_on_the_subject_come_before_asides():
    aside = "Yesterday my uncle ate a bowl of soup with seven onions for lunch."
    first, second, *rest = ARTICLES[0].text.split("\n\n")
    text = "\n\n".join([first, f"{aside} {second}", *rest])
    assert "soup" not in summarize([text], ARTICLES[0].title)


def test_a_summary_repeats_no_sentence():
    sentence = "The tide rises twice a day because the Moon pulls at the water."
    assert summarize([" ".join([sentence] * 20)]) == sentence


def test_sentences_with_words_of_the_title_are_preferred():
    fillers = [f"Sentence number {n} talks about gardens and gardens again." for n in range(8)]
    text = " ".join([*fillers, "The volcano near the village has been quiet for years."])
    assert "volcano" in summarize([text], "The volcano")


def test_tables_and_headings_are_not_taken_for_sentences():
    table = "Austria 8.9 83,879 Vienna German Belgium 11.5 30,689 Brussels Dutch"
    summary = summarize([f"# Facts about the countries of Europe\n\n{table}\n\n{ARTICLES[0].text}"])
    assert "Brussels" not in summary
    assert "#" not in summary


@pytest.mark.parametrize("text", ["", "   ", "word", "no sentence here", "…"])
def test_a_text_with_little_in_it_is_its_own_summary(text: str):
    assert summarize([text]) == text.strip()


@pytest.mark.timeout(20)
def test_a_long_text_is_summarised_in_reasonable_time():
    pages = [article.text for article in ARTICLES] * 60
    assert summarize(pages)
