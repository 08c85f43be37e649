"""Whole words of the "plain" vocabulary: frequent words of plain sentences, of prompts and of field names, and JSON.

A word is one token where no letter precedes or follows it. All other text is encoded by characters, so any value has
the same tokens in a sentence as in the answer and is copied character by character. The order is part of every
checkpoint of the vocabulary.
"""

_WORDS = """
system user model sudoku JSON Extract Edit Repair Fill Repeat list as the in from with text template asked
string integer number boolean date time null true false yes no
a an The A An of to for and or on at by is are was were be been has have had not will would can could should must
it its this that these those there here we you they he she I my your our his her their them him me us who which what
when where how if but so than then because while until after before between into over under about around per each
every all any some more most less only also just now today tomorrow yesterday soon again still already please Please
do does did done go goes went gone come came get got give gave given take took taken make made send sent Send ship
shipped deliver delivered order ordered orders buy bought sell sold pay paid cost costs call called ask asked said says
want wants need needs like left leave leaves arrive arrives arrived start starts started end ends ended open opened
close closed move moved meet meeting see seen look find found keep kept hold book booked confirm confirmed cancel
cancelled change changed set Set add Add remove Remove rename Rename replace update updated put know think work works
worked working live lives use used try run running last first second third next new old good big small long short high
low late early same other another own free full ready due available one two three four five six seven eight nine ten
eleven twelve twenty thirty forty fifty hundred dozen half quarter past o'clock am pm
January February March April May June July August September October November December
Monday Tuesday Wednesday Thursday Friday Saturday Sunday
day days week weeks month months year years hour hours minute minutes morning afternoon evening night noon
name names first_name last_name email phone address city country street company customer buyer seller client person
item items product quantity qty amount price total currency weight size color code id order_id status priority type
kind title author subject message note reason room table seat gate flight train bus car doctor patient team score
home away origin destination departure arrival sender receiver recipient owner manager location place language
age job role department event ticket invoice account balance discount tax version file path host port server
error level duration distance temperature website url username password tracking_number reference
box boxes bag bags bottle bottles pair piece pieces kg km euros dollars Mr Mrs Ms Dr street
We I'm It's He She They It There This That Our My Your His Her In On At For From To By If When Hello Hi Dear Thanks
Thank thanks hi dear best regards
"""

WORDS = tuple(dict.fromkeys(_WORDS.split()))

PLAIN_GLUE = (
    *('"},{"', '},{"', '[{"', '"}]', '":["', '"],"', '{"', '":"', '":', '","', ',"', '"}', "}]", '"]'),
    *("▁(integer)", "▁(number)", "▁(boolean)", "▁(date)", "▁(time)", "{{", "}}"),
)
"""Longer before shorter where one begins another."""

ACCENTED = tuple("áàâäãåæçéèêëíîïñóôöõøúüßčşğıłńžšěаеионтсрвл")
"""Frequent Latin and Cyrillic letters beyond ASCII; all others are their UTF-8 bytes."""
