"""The worked examples of the datasets whose questions can be about anything."""

from __future__ import annotations

from anchorscope.records import Shot

PERSON = Shot(question="Who painted the Mona Lisa?", answer="Leonardo da Vinci")
PLACE = Shot(question="In which city is the Colosseum?", answer="Rome")
DATE = Shot(question="In what year did the Berlin Wall fall?", answer="1989")
THING = Shot(question="What is the largest planet in the solar system?", answer="Jupiter")
YES_NO = Shot(question="Are the Alps and the Andes on the same continent?", answer="no")

GENERAL = (PERSON, PLACE, DATE, THING)
WITH_YES_NO = (PERSON, PLACE, DATE, YES_NO)
