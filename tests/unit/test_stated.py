"""Numbers of an answer that its text does not have: they are named as guesses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redraft.constraints.compile.stated import numbers_of, stated_choice, unstated
from redraft.operations.engine import Engine
from redraft.operations.read_back import Opinion


@pytest.mark.parametrize(
    ("text", "has", "lacks"),
    [
        ("Total: 19,99 €", [19.99], [1999, 19, 99, -19.99]),
        ("45,50", [45.5, 45.50], [4550]),
        ("it is -12 degrees, \u22123 at night", [-12, -3], [12, 3]),
        ("10-12 pages on 2024-05-03", [10, 12, 2024, 5, 3], [-12, -3]),
        ("3.5.2024, version 1.20.3", [3, 5, 2024, 20], [3.5]),
        ("1,250 EUR and 1.250.000,75 or 1'000", [1250, 1250000.75, 1000], [125000075, 1.25]),
        ("1 299,50 kr for LH123, 40kg. See 7.", [1299.5, 123, 40, 7], [12, 8]),
        ("Twenty-five pears, two hundred and five or two hundred six plums", [25, 205, 206], [7, 30]),
        ("CHF 1'234.50, 1\u2019234,5 or 1,00,000", [1234.5, 100000], [1, 234]),
        ("52.52,13.405 and 37.77,-122.41 and [-1,-5]", [52.52, 13.405, 37.77, -122.41, -1, -5], [122.41]),
        ("x .5, 1e5, minus 3, 50%, 1.5 million or 227.9bn", [0.5, 1e5, -3, 50, 1500000, 227.9e9], [-50, 1.5]),
        ("firmware 1.2.3e5 and 10.20.30E2 for 4k users", [1, 2, 30, 4000], [1.2, 123000, 4]),
        ("Two thousand five hundred people and 12 500 bolts", [12500], [5, 2, 12, 500]),
        ("one hundred and twenty pallets, a phone, twelve thousand", [120], [20, 100, 12, 1]),
        ("nothing", [], [0, 0.5, 1e300, float("inf"), 10**400]),
    ],
)
def test_a_number_is_in_a_text_as_people_write_it(text: str, has: list[float], lacks: list[float]) -> None:
    values = {str(value): value for value in (*has, *lacks)}
    assert unstated(values, text) == {str(value) for value in lacks}


@pytest.mark.parametrize(
    ("text", "has", "lacks"),
    [
        ("on the 12th of January 2023 at 9.30", ["2023-01-12", "09:30"], ["2023-02-12", "2022-01-12", "10:30"]),
        ("due 03/04/2026", [], ["2026-03-04", "2026-04-03"]),
        ("due 03/14/26, 3.4.2026, 5/5/2027", ["2026-03-14", "2026-04-03", "2027-05-05"], ["2026-06-14"]),
        ("7:30 pm or half past five, six o'clock", ["19:30", "07:30", "05:30", "17:30", "18:00"], ["08:30", "20:00"]),
        ("El 12 de marzo de 2025 a las 8", ["2025-03-12", "20:00"], ["2025-03-13", "20:15"]),
        ("2024-11-02T14:05:33Z", ["2024-11-02", "14:05:33", "14:05"], ["2024-12-02", "06:14:00"]),
        ("20251104 0930", [], ["2025-11-04"]),
        ("Sept 5th, 2026 at noon", ["2026-09-05", "12:00"], ["2026-08-05"]),
        ("Tuesday, I may march", [], ["2026-03-03", "09:00"]),
        ("On 13/04/2026 we meet", ["2026-04-13"], ["1999-04-13"]),
        ("On April 3, 2026 add 3/4 cup", ["2026-04-03"], []),
        ("at quarter to three, or noon", ["14:45", "02:45", "12:00"], ["15:45"]),
        ("14:05:30", ["14:05:30"], ["14:05:59"]),
        ("am 5. Oktober 2026, may", ["2026-10-05"], []),
        ("Vom 3. Dez. 2026 bis 5. Oktober 2026", ["2026-12-03"], ["2026-12-04"]),
        ("on 3 March 2026 at 10:00", ["2026-03-03", "10:00"], ["2026-03-10", "03:00"]),
        ("We left on 9 May 2025.", ["2025-05-09"], ["09:00"]),
        ("from 5 may to 3 june 2026", ["2026-05-05", "2026-06-03"], ["2026-07-05"]),
        (
            "12 May 2026, 9:30 am",
            ["2026-05-12T09:30:00Z", "2026-05-12 09:30", "09:30:00Z"],
            ["2022-05-12T09:30:00Z", "2026-05-12T09:30:44Z", "2026-05-12T09:30:00-20:00", "09:30:00+01:00"],
        ),
    ],
)
def test_a_date_or_time_is_stated_part_by_part(text: str, has: list[str], lacks: list[str]) -> None:
    assert unstated({value: value for value in (*has, *lacks)}, text) == {*lacks}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5.5 degrees below zero", "5.5"),
        ("Net loss: $1,250.75", "1250.75"),
        ("Shares fell 2.35 percent", "2.35"),
        ("Il fait moins 12,5 degrés", "12.5"),
        ("5,5 gradi sotto zero", "5.5"),
        ("saldo de menos 1.250,50 euros", "1250.50"),
    ],
)
def test_a_number_of_a_text_that_may_be_below_zero_has_both_signs(text: str, number: str) -> None:
    """Latitudes of the south were north, whatever a model would have written; held to nothing, 5,5 became 55."""
    assert {number, f"-{number}"} <= {*numbers_of(text)}


@pytest.mark.parametrize("text", ["48.8566° N, 2.3522° W", "Lat 33.8688S", "It needs 7.255 W", "He took 0.125 S"])
def test_a_place_or_a_watt_holds_no_answer_to_its_figures(text: str) -> None:
    """Of three figures behind a point it is not said what they are."""
    assert numbers_of(text) == []
    assert {float(one) < 0 for one in numbers_of("48.8566° N, 2.3522° E")} == {False}


@pytest.mark.parametrize("name", ["Ada", "Zoë", "Łukasz", "McDonald", "JP", "Jean-François", "O'Brien"])
def test_a_name_is_no_choice(name: str) -> None:
    choices = ["black", "white"]
    assert stated_choice(choices, f"{name} Black ordered a shirt.") == choices
    assert stated_choice(choices, f"Please send {name} the Black shirt.") == ["black"]


@pytest.mark.parametrize("thing", ["Levi's", "T-shirt", "COLOR", "A", "One"])
def test_a_thing_is_no_name(thing: str) -> None:
    assert stated_choice(["black", "white"], f"{thing} Black") == (["black", "white"] if thing == "One" else ["black"])


def test_what_is_no_number_is_not_looked_for() -> None:
    assert unstated({"a": "5", "b": True, "c": None, "d": []}, "x") == set()


def test_an_even_split_and_a_number_that_the_prompt_lacks_are_guesses(engine: Engine) -> None:
    """As for 'Total: 19,99 €': a currency of 0.5009 is no knowledge, and 1999 stands nowhere."""
    text = '{"total":1999,"currency":"GBP"}'
    tokens = tuple(engine.text.encode(text, bos=False))
    done = replace(engine.generate("a", max_tokens=1, seed=1), text=text, tokens=tokens, begins=0)
    at = next(i for i in range(len(tokens)) if "GB" in engine.text.decode(tokens[: i + 1]))

    def guesses(nats: float, asked: str) -> list[str]:
        log_p = (*(0.0,) * at, nats, *(0.0,) * (len(tokens) - at - 1))
        return Opinion(done, log_p, asked=asked).guesses(engine.text)

    assert guesses(-0.6914, "") == ["/currency"]
    assert guesses(-0.1, "Total: 1.999 pounds") == []
    assert guesses(-0.1, "Total: 19,99 €") == ["/total"]


def test_fractions_are_no_numbers_and_may_be_dates() -> None:
    values = {"half": 2, "thousand": 1, "part": 8, "million": 1.2, "day": "2026-05-12"}
    text = "2 1/2 cups, 1_000 spoons, about 8,000 bolts for $1.2M, on 12/05, 2026-05-12 in full"
    assert unstated(values, text) == {"half", "thousand", "part", "million"}
    assert unstated({"qty": 3, "day": "2026-12-12"}, "3 cups on 12/12 2026") == set()
