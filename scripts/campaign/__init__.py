"""Hard use of the four commands: broken logs, hostile folders, wrong command lines, processes that die.

    python -m scripts.campaign                                     all areas, ten minutes
    python -m scripts.campaign readers folders --seconds 60 --seed 3
    python -m scripts.campaign kills --seed 0 --case 2 --keep      one case again; its folder stays

A case follows from area, seed and number alone. A fault is a trace, a crash, a hang, a message that is missing, a file
left half-written, an output that is missing, or a figure that differs from that of an independent reader.
"""
