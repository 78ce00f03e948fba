"""Openings to be continued for the bank: paragraphs in the manner of old novels, verse drama, plain instructions.

A scene is written so that any of its openers goes with any of its middles and ends; a paragraph is one such walk.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .words import fill

PARAGRAPHS_PER_SCENE = 13
SPEECHES_PER_PLAY = 14
INSTRUCTION_ROUNDS = 3


@dataclass(frozen=True)
class Scene:
    openers: tuple[str, ...]
    middles: tuple[str, ...]
    ends: tuple[str, ...]


@dataclass(frozen=True)
class Play:
    """Pairs of speakers; verses that open, verses that answer, and half speeches that break off."""

    pairs: tuple[tuple[str, str], ...]
    openers: tuple[str, ...]
    answers: tuple[str, ...]
    breaks: tuple[str, ...]


def prompts(rng: random.Random) -> Iterator[str]:
    for _ in range(PARAGRAPHS_PER_SCENE):
        for scene in SCENES:
            yield paragraph(scene, rng)
    for _ in range(SPEECHES_PER_PLAY):
        for play in PLAYS:
            yield speeches(play, rng)
    for _ in range(INSTRUCTION_ROUNDS):
        for instruction in INSTRUCTIONS:
            yield fill(instruction, SLOTS, rng)


def paragraph(scene: Scene, rng: random.Random) -> str:
    opener, end = rng.choice(scene.openers), rng.choice(scene.ends)
    order = sorted(rng.sample(range(len(scene.middles)), rng.choice([0, 1, 1, 2])))
    parts = [opener, *(scene.middles[i] for i in order), end]
    text = fill(" ".join(parts if rng.random() < 0.92 else [opener]), SLOTS, rng)
    return text[0].upper() + text[1:]  # "the widow Larkin" may stand first


def speeches(play: Play, rng: random.Random) -> str:
    """The first speaker opens; the second answers, or the first breaks off, or one after the other."""
    first, second = rng.choice(play.pairs)
    opener, answer, break_ = rng.choice(play.openers), rng.choice(play.answers), rng.choice(play.breaks)
    return rng.choice(
        [
            f"{first}:\n{opener}\n\n{second}:\n{answer}",
            f"{first}:\n{opener}\n{break_}",
            f"{first}:\n{opener}\n\n{second}:\n{answer}\n\n{first}:\n{break_}",
        ]
    )


SLOTS: dict[str, Sequence[object]] = {
    "man": [
        "Mr. Harcourt", "Mr. Penrose", "Captain Allardyce", "Mr. Thornley", "Dr. Fenwick", "Sir Miles Rowan",
        "Mr. Grice",
        "Edmund Varley", "old Mr. Tibbs", "Colonel Strand", "Mr. Lovelock", "Jasper Quayle",
    ],
    "boy": ["Tom Hadley", "young Peter", "Christopher", "little Ned", "Walter Bly", "Robin Ames"],
    "woman": [
        "Miss Temple", "Mrs. Ashworth", "Lady Corbet", "Margaret Lisle", "Miss Pomfret", "Mrs. Dunnage",
        "Harriet Vane-Smith",
        "Miss Clementina Rudd", "Mrs. Oakeshott", "Agnes Marlow", "the widow Larkin", "Miss Honoria Pell",
    ],
    "girl": ["Lucy", "Dorothea", "little Anne", "Phoebe Marsh", "Rosamund", "Kitty Farrow"],
    "town": ["Wexcombe", "Marlford", "St. Oswin", "Great Harding", "Port Tarrant", "Ashby Regis", "Coldwater",
     "Dunmere"],
    "house": ["Thornhill", "Mallow Grange", "the Priory", "Eastlea", "Barrow Hall", "Staveley Court"],
    "season": ["October", "November", "February", "March"],
    "ship": ["Halcyon", "Mary Bright", "Constance", "Good Intent", "Sea Swallow"],
    "hour": ["six", "seven", "nine", "ten", "eleven"],
    "years": ["three", "five", "seven", "ten", "twelve", "twenty"],
    "lips": ["her lips", "his lips"],
    "parson": ["Mr. Amory", "Mr. Septimus Hale", "Mr. Goodbody", "Mr. Trask"],
    # for the instructions
    "subject": ["a lighthouse keeper", "a lost umbrella", "a village band", "the last tram of the night",
     "an honest thief",
                "a clockmaker's apprentice", "two rival bakers", "a garden in winter"],
    "place": ["a harbour at dawn", "an abandoned railway station", "a crowded kitchen", "a mountain hut",
     "a fishing village",
              "an old library", "a night market"],
    "topic": ["how bread rises", "why the sea is salty", "what a mortgage is", "how a bicycle stays upright",
     "why leaves fall",
              "how a lock works", "what causes an echo"],
    "occasion": ["a retiring colleague", "a neighbour who looked after your cat", "a teacher at the end of the year",
                 "a friend who is moving abroad", "a customer whose parcel was lost"],
    "thing": ["an umbrella", "a pair of boots", "a teapot", "a second-hand piano", "a tent", "a kitchen knife"],
    "skill": ["learn a language", "keep houseplants alive", "sleep better", "prepare for an interview",
     "save water at home"],
    "count": ["three", "four", "five", "six"],
}  # fmt: skip

# Scenes as text: openers, middles and ends, parted by blank lines; a line of dashes between scenes.
_SCENES = """\
It was past {hour} o'clock on a wet evening in {season} when the coach from {town} set {man} down at the inn.
{man} had not meant to stop at {town}, but the roads were under water and the horses could go no further.
The landlord of the Blue Boar was counting his candles when the door blew open and {man} walked in out of the rain.

There was a great fire in the parlour, and three farmers sat before it without speaking.
He asked for a room, was told there was none, and laid a gold piece upon the counter.
The chambermaid looked at his muddy boots, and then at the small black box which he would let no one carry.
Somewhere above, a clock struck the quarter, and a dog began to howl in the yard.

"You will think it strange," said he, drawing off his gloves,
Nobody in the room could afterwards agree on the words he used, but all remembered
He had scarcely taken his seat when an old man by the fire rose, stared hard at him,
"I am looking," said he at last, "for a man who passed this way {years} years ago."
---
When {woman} came to live at {house}, the neighbourhood called upon her at once, and was disappointed.
{woman} had been mistress of {house} for {years} years, and in that time had never once gone up to the attic.
There were forty windows at {house}, and it was the fancy of {woman} to have a lamp set in every one of them.

She was neither handsome nor plain, and she spoke so little that the clergyman supposed her to be proud.
The servants were old, the clocks were slow, and the dust lay in the long gallery like a fall of snow.
Of her late husband she said nothing, and his portrait hung with its face to the wall.
It was remarked in {town} that she paid her bills on the first of every month, and always in silver.

But on the morning of her birthday a letter arrived, sealed with green wax,
One evening, as she sat at her needlework, she heard above her head
Her niece, who had sharper eyes than the rest of the family, was the first to notice
"A house," she used to say, "is like a person: it keeps its worst stories for the end."
---
The {ship} had been eleven weeks at sea when the wind failed her altogether.
We sailed out of {town} in the {ship} on the second of {season}, with a full hold and a drunken mate.
I was a boy of fourteen when I went aboard the {ship}, and I had never before seen so much water in one place.

The sails hung like washing, and the pitch ran soft between the planks.
Captain Bode walked the deck from morning till night with his hands behind him and spoke to no one.
Our water was reckoned by the spoonful, and the men began to look strangely at the passenger in the after cabin.
On the fourth day the cook swore that he had heard a bell ringing under the keel.

Then, a little before dawn, the lookout gave a shout,
It was I who saw the boat first, and I have often wished since
"Land," said the old sailor at my elbow, but there was no joy in his voice,
What happened that night was never written in the log, and I set it down here for the first time.
---
The will of the late Josiah Crewe was read in the dining room at {house}, under the eyes of eleven relations.
"I will ask you all to be seated," said {man}, and he broke the seal of the will with a paper knife.
No family ever listened more attentively to a sermon than the Crewes of {town} listened to the reading of the will.

{woman} had brought her own handkerchief and a list of the silver.
The rain ran down the windows, and the younger nephews tried to look as though they expected nothing.
To the housekeeper he left his parrot and ten pounds a year, and to the parrot he left a quantity of good advice.
The lawyer wiped his spectacles, coughed, and turned the page with evident reluctance.

"The remainder of my fortune," he read, "I give to the person who,
There was a silence of perhaps a minute, and then everyone began to speak at once,
At these words the door opened, and a stranger in a grey travelling cloak
It was then discovered that the last page was missing.
---
{boy} was sent to school at {town} in his ninth year, with two shirts, a plum cake and a Latin grammar.
There were sixty boys at Dr. Gudgeon's academy, and the smallest and coldest of them was {boy}.
On the first night of the term {boy} lay awake and counted the cracks in the ceiling until there were no more to count.

The porridge was thin, the blankets were thinner, and the master's temper was thinnest of all.
He learned within a week which of the stairs creaked, and within a fortnight how to be beaten without crying out.
His only friend was the one-eyed gardener, who had been a soldier and knew the names of the stars.
Every Sunday the boys wrote home that they were well and happy, for the letters were read before they were posted.

One frosty morning, when the slates were given out, he found upon his own
It was the gardener who told him of the door behind the laurels,
Then came the affair of the stolen key, of which so much was said afterwards,
"Stand up, sir," said the master, "and tell us all where you were last night."
---
The assembly rooms at {town} had been new-painted for the winter, and half the county came to look at the paint.
{woman} danced the first two dances with {man}, and before the third had begun the whole room had married them.
Nothing had been talked of in {town} for a month but the ball at {house}, and now that it was come it rained.

The musicians were hungry, and played faster as the supper hour drew near.
Mothers sat along the wall with their fans, and valued the young men as they went by.
It was agreed that no one had ever worn so unfortunate a shade of yellow, nor worn it with such spirit.
A tall gentleman whom nobody knew had stood by the door all evening and asked no one to dance.

"I cannot admire him," said she, when they were out of hearing,
He bowed, she curtsied, and each was resolved to think as ill as possible of the other,
It was not until the candles were being put out that her sister came up, very pale,
And yet, when he had gone, she found that the room seemed larger, and a good deal duller.
---
I had been {years} years a clerk with Messrs. Bray and Tolliver when the figures began to trouble me.
My desk in the counting-house stood by a window that looked upon a wall, and I had learned to read the wall like a book.
Every morning at {hour} I hung my hat upon the same peg, and every evening I took it down again, a day older.

Mr. Tolliver was dead, and Mr. Bray was deaf, so that the business was carried on chiefly by the cat.
It was a matter of four pounds and some shillings, no more, but it would not come right.
I went through the ledgers by candlelight, when the others had gone home to their suppers.
My sister said that I was growing thin, and put an egg in my bread and milk.

At the bottom of the page, in a hand that I knew very well,
I had my finger still upon the place when I heard a step upon the stair,
A more prudent man would have shut the book and said nothing, but I
That was how I came to learn the secret of the firm, and to wish that I had not.
---
The snow had come early to the valley, and by the first week of {season} the pass was closed.
High up under the glacier, where the road ends, there stood in those days a hut kept by {man} and his daughter.
All day the guide had gone before them without a word, sounding the snow with his long staff.

The mules stood with their tails to the wind and would not be led.
They had bread for two days and wood for three, and nobody spoke of the fourth.
Towards evening the clouds parted, and the whole range stood up red as iron from the forge.
Far below, so small that a thumb would have covered it, lay the church of {town}.

"There is a light," said the girl, pointing across the ravine,
He knelt, brushed away the loose snow, and uncovered
What they had taken for thunder was the mountain itself,
They roped themselves together and went on, for there was nothing else to be done.
---
{girl} had been told never to go beyond the mill, and so, on the first fine morning of the year, she went beyond it.
At the end of the lane there was a gate, and on the gate sat {girl}, waiting for something to happen.
It was {girl} who found the fiddle, wrapped in a sack and hidden under the roots of the great beech.

The path ran between hedges white with thorn, and every bird in the parish seemed to be talking at once.
She had in her pocket a heel of bread, a piece of string, and a sixpence with a hole in it.
Her grandmother held that whoever whistles in a wood must answer for what comes.
The brook was high, and somebody had taken away the stepping stones.

"Good day," said a voice so near that she almost fell,
She had gone no more than a hundred steps when she saw, under the trees,
There, sitting on a stone with his bare feet in the water, was a boy
If she had turned back then, as she often said in later years, there would be no story to tell.
---
The prisoner in the north tower had been there so long that the gaoler had forgotten the crime.
{man} was taken at {hour} in the evening, at his own table, before he had finished his soup.
There is a cell in the fortress of {town} from which, if one stands upon the bench, a hand's breadth of sea is visible.

The walls were wet, the straw was old, and the only visitor was a mouse whom he called the Governor.
He scratched the days upon the stone with a nail, seven to a row, and the rows now reached the door.
Once a week the priest came, and talked of patience, and went home to his dinner.
From the next cell there came every night, after the last round, a faint and regular knocking.

On the eve of the feast the loaf was heavier than usual, and when he broke it,
He laid his ear against the stone and counted the strokes,
"You are to come with me," said the gaoler, and he did not meet his eyes,
It had never occurred to his judges that a man might learn to be free in so small a room.
---
The train from {town} was forty minutes late, and the only other person on the platform was {woman}.
"Is this seat taken?" asked {man}, although the carriage was empty.
It is a curious thing to be shut up for {years} hours in a railway carriage with a person who will not tell his name.

The lamp had been lit, and the fields went by outside like pages turned too quickly to be read.
A basket stood upon the seat, tied down with cord, and from time to time it moved.
They spoke of the weather, of the harvest, and of the murder that was then in all the newspapers.
At every station a man in a brown hat got down, walked along the train, and looked in at the windows.

Just before the tunnel the stranger leaned forward and said in a low voice,
When the light returned, the seat opposite was empty,
The ticket was for a place that had been under the sea for a hundred years,
I have told this to three policemen and a bishop, and none of them believed me.
---
The winter that the mill stopped, there was not a fire in one house out of four in Cinder Row.
In Cinder Row everybody rose at five, for the bell of the mill could be heard through any pillow.
{man}, who owned the mill, had never been in Cinder Row, and {woman}, who lived there, had never seen the sea.

The children went to bed in their coats, and told one another what they would eat if they were kings.
Men stood at the corners with their hands in their pockets and were civil to each other, which was a bad sign.
On Friday the pawnshop shut its door because there was no more room in it.
It was said that the new engine would do the work of forty hands and would never ask for bread.

So when the meeting was called in the chapel, the first to stand up was
"We have asked," he began, turning his cap round and round,
The masters sent for soldiers, and the soldiers, when they came, proved to be
That night every window of the great house was lit, and there was music till morning.
---
{man} was the cleverest physician in {town}, and would have been the richest if he had known how to send in a bill.
They sent for {man} at {hour} at night, and he went as he was, with his coat over his nightshirt.
The doctor laid two fingers on the wrist and said nothing for so long that the aunt began to weep.

The room smelt of vinegar and lavender, and the blinds had been down for a week.
Upon the table stood seven bottles, each of which had been recommended by a different neighbour.
The patient was a child of six, with cheeks like poppies and very serious eyes.
It was the third case in that street since Michaelmas, and he did not like the colour of the well.

"Open the window," said he, "and put all these bottles
Towards morning the breathing changed, and he, who had not sat down all night,
He had seen that look once before, in the fever camp, on the face of
"She will live," he said, and went out quickly, because his own eyes were not to be trusted.
---
No one in {town} could say when the shop at the corner of Mercer's Alley had first opened, or had ever seen it shut.
{man} sold clocks, and there was not one in his shop that told the right time.
The shop had a green door, a brass bell, and a stuffed owl in the window with a ticket round its neck.

Dust lay on the counter, and in the dust someone had drawn, with great care, a map.
A customer came in perhaps twice in a week, and seldom the same one twice.
Behind the curtain one heard a sound of filing, and now and then a laugh.
The prices were written in a cipher which even the apprentice had not been taught.

"That one is not for sale," said the old man quickly, and he put his hand
I asked him what it was for, and he answered, without looking up,
On the highest shelf, behind the globes and the broken barometers,
When I went back the next day there was only a wall, and a notice about the posting of bills.
---
They brought in the last of the barley on the eve of St. Giles, and {man} broached the great cask.
The farm lay by itself in a fold of the downs, and it was {years} years since a stranger had come there by daylight.
At harvest, when every hand was wanted, even {woman} put on an apron and went down to the field.

The moon came up as round as a cheese, and the wagons went home singing.
There were pies on the trestles, and a fiddler had been fetched from {town} in a cart.
The old men sat on the wall and said that the barley had been taller when they were young.
Nobody had asked the young shepherd to dance, and nobody had asked him to stay away.

It was then that they saw the glow beyond the ridge,
The farmer's wife put down her jug, wiped her hands, and walked straight across the yard to
"There's a man at the gate," said the child, "and he says that this is his house."
In after years it was always spoken of as the last good harvest,
---
The letter had been {years} years on the way, and had been to India and back.
{woman} knew the handwriting at once, although she had believed the writer to be dead.
Among the bills and the circulars upon the breakfast table there lay a letter with a foreign stamp, addressed to {man}.

The ink had turned brown, and one corner had been gnawed by some small animal.
It was put aside till after breakfast, and nobody tasted what was eaten.
There was a pressed flower in it, of a kind that does not grow in these islands.
It began without any greeting, in the middle of a sentence, as though a conversation had only just been broken off.

"By the time you read this," it said, "I shall be
The second sheet was torn across, but it was still possible to make out the words
There was only one person living who could explain it, and that person
It was read three times, and then held to the flame of the candle.
---
{man} and {man2} had been friends for thirty years, and had quarrelled for twenty-nine of them.
They met at daybreak in the meadow behind the abbey: {man}, {man2}, two seconds, and a surgeon with a cold.
It was about a hat that {man} and {man2} fell out, though the hat, as everyone knew, was only the beginning of it.

The grass was wet, and a cow looked over the hedge with an expression of deep interest.
Neither would speak first, and so for a time neither spoke at all.
It was generally allowed that both of them were in the wrong, and that both of them would rather die than say so.
The pistols had belonged to somebody's grandfather, and nobody was quite certain how to load them.

"Before we go any further," said the elder, clearing his throat,
The handkerchief fell, and in the same instant there came from the road
They might have gone on so for ever, had it not been for a certain pig,
The surgeon sneezed, and honour was satisfied.
---
There is no moor in the north so lonely as that which lies between {town} and the sea.
{boy} had crossed the moor a hundred times by day, but never until that night alone.
The mist came down upon us at about {hour}, as suddenly as a lid upon a box.

Our lantern showed us nothing but one another's faces, and those we were tired of.
The stones are older than the church, and the shepherds take off their caps when they go by them.
Somewhere to the left a bird was crying, always at the same distance.
It was said that a whole company of horse had ridden into the bog there in the old wars, with drums beating.

I put out my hand to feel for the wall, and what I touched
And now, quite clearly, we could hear upon the turf behind us
Beside the tallest of the stones there stood a woman with a lamp,
We did not run, because there was no knowing which way to run.
---
The old king had three sons, and trusted none of them.
In the year of the great frost the Duke of Estmark rode to court with four hundred lances and asked for the princess.
It is written in the chronicle of the monks of {town} that the crown was lost for the sake of a falcon.

The eldest loved war, the second loved gold, and the youngest was thought to be simple.
All night the messengers went to and fro between the palace and the camp, and the bridges were guarded.
The chancellor, who had served four masters, advised that nothing should be done, and done slowly.
There were omens: a calf with two heads, a comet, and a great scarcity of fish.

When the gates were opened in the morning, there was found upon the threshold
"Sire," said the fool, who alone had not been asked for his opinion,
Then the queen rose up in her place, and took the ring from her finger,
Of the four hundred who rode out, one came home, and he was not the one they had prayed for.
---
My friend the detective was lying upon the sofa with a newspaper over his face when {woman} was shown in.
"You have come from {town} by the early train," said my friend, before the visitor had opened {lips}.
The case of the drowned organist was laid before us on a foggy morning in {season}, and very nearly refused.

I placed a chair near the fire and moved the skeleton out of it.
"The police," was the reply, "have told me that it was an accident, and that I should take a holiday."
A photograph was handed across the table, and my friend held it upside down for some time.
There were two things in the story which did not agree, and I was rather proud of having noticed one of them.

"One question more," said he. "On which side of the door was
He sprang up, took a magnifying glass from among the pipes,
"It is perfectly simple," he answered, "once you have asked yourself why the dog
We were in a cab within five minutes, and it was not until we had crossed the river that he spoke.
---
The theatre at {town} had burned down twice, and {man}, the manager, had hopes of a third time.
{girl} had played the page, the fairy and the second murderer, and she was not yet fifteen.
On the night of the great storm there were nineteen persons in the pit, and four of them had come in to be dry.

The scenery was shared with a company at the other end of the county, and the moon was late.
The leading lady had lost her voice, and was telling everyone so in a whisper.
The prompter was asleep, the thunder was mislaid, and the ghost had not been paid.
Behind the curtain there was a smell of oranges, size and singed hair.

Then from the back of the gallery a man's voice called out a name,
The curtain rose, and there, in the middle of the stage, where no one had any business to be,
"Go on," whispered the manager, "say anything, only say it loud,
It was the best performance that had ever been given in the county, and it was never repeated.
---
The parish of {town} had not had a miracle for two hundred years, and the vicar was content that it should not.
The Reverend {parson} kept bees, wrote a very small hand, and was afraid of his housekeeper.
On the Sunday after Easter the bells of {town} rang of their own accord, at {hour} in the morning.

The churchwardens were sent for, and the sexton, and last of all the constable.
He had been for eleven years at work upon a history of the parish, and had reached the Flood.
There was a deal of talk at the forge, where most things were settled.
The bishop wrote that he would come himself, and asked whether the beds were aired.

In the belfry they found no one, but upon the beam, in fresh chalk,
"It is my opinion," said the housekeeper, folding her arms,
It was the sexton's boy who first thought of looking in the crypt,
He took up his hat and his stick, and went out to see for himself.
---
After the funeral {woman} sent the carriage home empty and walked.
The house had been let for the summer, and already it looked at {woman} as at a stranger.
For {years} years {woman} had meant to go to Italy, and now there was nobody left to prevent it.

The swallows were gathering on the chapel roof, and the first leaves lay upon the path.
She was fifty-three, and it was the first time in her life that she had not been expected anywhere.
In her bag were a purse, a prayer book, and a key that fitted nothing in the house.
People were kind, as people are, for a week.

At the crossroads she stood still, looked back once,
It came to her quite suddenly, beside the duck pond, that she
"You'll be lonely, ma'am," said the porter, and she was about to agree, when
She bought the ticket before she could change her mind.
---
The regiment had marched since midnight, and not a man in it knew where.
Corporal Hobday held that a battle was nothing but a great deal of walking with a loud noise at the end.
{man} had the bridge to hold, with sixty men, one gun, and orders that had been wet through.

The road was strewn with knapsacks, and in a ditch lay a piano with its lid open.
The smoke came across the river in slow white folds, and behind it there was a sound like the tearing of cloth.
A boy of the drums had gone to sleep on his feet and was being steered by the collar.
In the farmhouse the general was eating eggs, and looking at the wrong map.

At that moment an officer without a hat came galloping down the hill,
"Hold your fire," said the sergeant, "for those are not the enemy, those are
He took out the letter, which he had not yet had the courage to read,
When the sun was fairly up they saw what it was they had been fighting for.
"""

SCENES = tuple(
    Scene(*(tuple(group.splitlines()) for group in block.strip().split("\n\n"))) for block in _SCENES.split("\n---\n")
)

PLAYS = (
    Play(
        (("DUKE", "ANSELMO"), ("KING", "CHANCELLOR"), ("PRINCE", "RINALDO"), ("LEONTIO", "BERNARDO")),
        (
            "What news from those that hold the northern gate?\nThe night is old, and yet no trumpet sounds.",
            "I gave this man my purse, my horse, my trust;\nHe gives me back a smile and half a town.",
            "Call in the captains. I have dreamed again\nOf crows that built their nest upon my crown.",
            "They say a king should neither love nor sleep;\nI have done both, and see what it has cost.",
        ),
        (
            "My lord, the gate is held, but not by us.\nThe keys were sold before the sun went down.",
            "Be patient, sir: a storm that comes at noon\nIs seldom heard of when the stars are out.",
            "I never flattered you, and shall not now.\nThe people want for bread, and you for ears.",
            "Give me a hundred men and leave to fail,\nAnd I will bring you either peace or him.",
        ),
        (
            "Then let the bells be dumb, the torches drowned,\nAnd every man that loves me",
            "Who speaks of peace, and wears his sword so loose?\nGo, tell your master",
            "I had a brother once. He had a son.\nWhere is that son to-night? For I have heard",
            "Bring me the cup. No, not the golden one:",
        ),
    ),
    Play(
        (("ROSALBA", "NURSE"), ("VIOLETTA", "LUCIO"), ("ISABEL", "FERRANTE"), ("BIANCA", "JULIO")),
        (
            "How slow the moon is! I could climb the sky\nAnd pull her down, to be an hour the nearer.",
            "He wrote me seven letters in a week,\nAnd every one of them was to himself.",
            "If he be late, I'll say I had forgot;\nIf he be soon, I'll say he came too late.",
            "They'd have me marry thirty thousand crowns,\nWith an old man to carry them about.",
        ),
        (
            "Fie, what a coil is here for one small ring!\nI was as young as you, and ate my supper.",
            "Sweet lady, here he stands that should have come,\nAnd would have run, but that he stayed to rhyme.",
            "Your father walks below, and with him walks\nA notary, two witnesses, and fate.",
            "Love is a debt that's paid in foreign coin;\nThe more we give, the less the banker knows us.",
        ),
        (
            "Peace! On the stair I hear a heavy foot.\nQuick, to the window,",
            "I will not weep. I will be wise, and cold,\nAnd when he comes to me upon his knees,",
            "O, if my heart were but a thing of wax,",
            "Say that I'm sick; say that I'm gone to pray;\nSay anything, but do not say",
        ),
    ),
    Play(
        (
            ("First Watchman", "Second Watchman"),
            ("First Citizen", "Second Citizen"),
            ("COBBLER", "BAKER"),
            ("HOSTESS", "PISTOLET"),
        ),
        (
            "Stand, in the duke's name, if it be a man;\nAnd if it be a ghost, then get thee gone.",
            "I tell you, neighbours, corn was never so dear\nbut that a mouse might have it and be thankful.",
            "Here's a cold night to earn a penny in;\nmy very beard is stiff with honesty.",
            "Is there no law but what the rich can read?\nThen let us have a law of cudgels, friends.",
        ),
        (
            "Put up your lantern, man, it is a cat,\nAnd a most civil cat. Good even, sir.",
            "You talk, you talk. My belly is no senate,\nthat it should sit and hear it argued.",
            "Softly, good masters. He that strikes a beadle\nmust have two heads, the one to lose.",
            "I knew your father: he could drink and pay,\nWhich you have learned the former half of well.",
        ),
        (
            "Hark, there's a noise of horses in the square.\nWho comes with such a",
            "Nay, if you speak of hanging, I remember",
            "Come, to the market-place! We'll ask them fairly,\nAnd if they will not answer us,",
            "Is it not written that a hungry man",
        ),
    ),
    Play(
        (("OLD SAILOR", "MIRABEL"), ("HERMIT", "FLORIO"), ("SHEPHERD", "CELIO"), ("WITCH", "THANE")),
        (
            "I saw the sea stand up upon its feet\nAnd walk toward the island like a king.",
            "Come in, come in. The roof is made of leaves,\nBut there's a fire, and no one asks your name.",
            "Three times the owl has called across the heath,\nAnd three times something answered from the well.",
            "I have not seen a face these forty years\nExcept the moon's, and that is often veiled.",
        ),
        (
            "Good soul, I have wandered out of my grief\nAnd do not know the way that I came in.",
            "What place is this, where every stone has ears\nAnd every brook repeats what I have thought?",
            "Tell me what waits for me beyond the hill.\nI'll pay with gold, or, if you will, with years.",
            "I fear thee not; and yet I hold my breath,\nAs children do that pass a churchyard wall.",
        ),
        (
            "Sit down, and I will tell thee how it was:\nThere were two brothers, and between them stood",
            "Drink this, and sleep. And when thou dost awake,",
            "Beware the man that comes with empty hands;\nBeware",
            "The tide is turning. Listen, how it drags\nThe pebbles after it, as if",
        ),
    ),
    Play(
        (("GENERAL", "MESSENGER"), ("QUEEN", "WARWICKE"), ("HOTFORD", "DOUGAL"), ("LADY MARCH", "EDRIC")),
        (
            "Now, by this field that drank my father's blood,\nI'll plough it up with horses ere I yield.",
            "How stands the day? I see our banners dip\nLike thirsty birds upon the river side.",
            "Is it so late? Then arm me where I stand.\nA tardy sword is like a tardy friend.",
            "You ask me to forgive him. So I do.\nThe axe forgives the tree that it has felled.",
        ),
        (
            "The left is broken, and the right is fled;\nThe centre stands because it knows no better.",
            "My liege, they offer terms: your life, your name,\nAnd leave to go on foot to any shore.",
            "I have the wound you sent me for, my liege,\nAnd bring it home together with the news.",
            "Let others count the dead. I'll count the quick,\nAnd shame to say, I'll not be long about it.",
        ),
        (
            "Go back and tell them that I never learned\nTo walk on foot; and tell them",
            "Who brings my son? What, all these men returned,\nAnd none of you",
            "Then sound once more. And if they hear it not,",
            "Break off the spear, and give the half to me,\nThat when the chroniclers",
        ),
    ),
)

INSTRUCTIONS = (
    "Write the opening paragraph of a short story about {subject}.",
    'Continue this story: "Nobody had ever asked about {subject}, until the day the snow came."',
    'Describe {place} in {count} sentences without using the word "beautiful".',
    "Write a short poem about {place}.",
    "Explain {topic} to a ten-year-old child in a short paragraph.",
    "Explain in plain words {topic}.",
    "Write a short card for {occasion}.",
    "Write a polite e-mail to {occasion}.",
    "Give {count} tips for people who want to {skill}.",
    "List {count} things to look for when buying {thing}.",
    "Write a dialogue between {subject} and a customs officer.",
    "Suggest {count} titles for a novel about {subject}.",
    "Write a short advertisement for {thing} that nobody wants.",
    "Tell a bedtime story that takes place in {place}.",
)
