"""Other words for words of technical English, for questions that say the same otherwise."""

from __future__ import annotations

from typing import Final

_GROUPS: Final = """
delete remove erase discard
create make generate produce
show display present
start launch begin
stop halt terminate
change modify alter
use employ utilize
get fetch obtain retrieve
send transmit
choose select pick
allow permit enable let
forbid prohibit disallow prevent
directory folder
error failure fault mistake
option setting
name title
list enumeration
command instruction
function routine procedure
method technique approach
user person
computer machine host
program application software
library module
version release edition
default standard
specify state indicate
describe explain
contain include hold comprise
return yield
check verify examine inspect
find locate discover
search lookup
copy duplicate replicate
rename retitle
write store save
read load
open access
connect attach link join
client customer
request query demand
response answer reply
message notice
data information
column attribute
identifier key
string text
number integer
size length
storage disk
task job
run execute perform
call invoke
support handle
require need demand
provide supply offer
example sample instance
configure customize
configuration setup
install deploy
update refresh
upgrade improve
build compile construct
convert transform translate
format layout
input entry
output result
result outcome
assign set
establish set
add append insert
replace substitute swap
match correspond
ignore disregard skip
limit restrict bound
maximum highest greatest
minimum lowest least
first initial
last final
previous earlier preceding
next following subsequent
current present
new fresh
old ancient former
several multiple many various
single sole
entire whole complete
part portion piece
character letter symbol
expression formula
condition circumstance criterion
rule regulation
permission right privilege authorization
password passphrase
security protection safety
secure safe protected
signal notification
event occurrence
wait pause
fast quick rapid
slow sluggish
large big huge
small little tiny
important significant essential
possible feasible
different distinct
similar alike comparable
additional extra further supplementary
available accessible
usually normally typically commonly
often frequently
always invariably constantly
about concerning regarding
inside within
determine decide ascertain
cause trigger provoke
affect influence impact
avoid circumvent
ensure guarantee assure
control manage govern
feature capability functionality
behavior conduct
element item
type kind sort
property characteristic
source origin
target destination
path route
location place
reference mention
documentation manual guide
tool utility
developer programmer engineer
language tongue
operation action
transaction dealing
database repository
free release
empty blank
valid legitimate
invalid incorrect illegitimate
correct right accurate
wrong incorrect mistaken
warning caution alert
problem issue trouble difficulty
solution remedy fix
fix repair mend
debug troubleshoot diagnose
combine merge unite
split divide separate
local nearby
remote distant
global worldwide
private confidential
internal inner
external outer
optional voluntary
mandatory compulsory required obligatory
common frequent
special particular
specific particular
general generic
simple easy plain
complex complicated intricate
"""


def _make_synonyms() -> dict[str, tuple[str, ...]]:
    synonyms: dict[str, list[str]] = {}
    for line in _GROUPS.split("\n"):
        words = line.split()
        for word in words:
            others = synonyms.setdefault(word, [])
            others += [each for each in words if each != word and each not in others]
    return {word: tuple(others) for word, others in synonyms.items()}


SYNONYMS: Final = _make_synonyms()
"""Word to words with nearly its meaning."""
