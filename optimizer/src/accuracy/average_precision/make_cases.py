#!/usr/bin/env python3
"""Writes cases.json: random known and found boxes with the mean average precision that pycocotools 2.0.11 gives them.

    pip install pycocotools==2.0.11 && python3 make_cases.py

Coordinates are whole numbers and scores multiples of 1/64, so that every program reads the same numbers.
"""
import contextlib
import io
import json
import pathlib
import random

import numpy
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def box(rng):
    return [rng.randrange(0, 160), rng.randrange(0, 120), rng.randrange(4, 60), rng.randrange(4, 60)]


def moved(rng, sides, most):
    left, top, width, height = sides
    shift = lambda: rng.randint(-most, most)
    return [left + shift(), top + shift(), max(1, width + shift()), max(1, height + shift())]


def case(name, seed, images, classes, known, found, crowd=0.0, levels=65, most=6, miss=0.2, around=False):
    """Known: [class, left, top, width, height, crowd]; found: [class, 64 × score, left, top, width, height]."""
    rng = random.Random(seed)
    listed = []
    for _ in range(images):
        truth = [[rng.randrange(classes), *box(rng), int(rng.random() < crowd)] for _ in range(rng.randint(*known))]
        # Crowds that hold a known object, whose own match comes first.
        crowds = [[class_, left - 15, top - 15, width + 30, height + 30, 1]
                  for class_, left, top, width, height, _ in truth[:2]]
        guesses = []
        for class_, *sides, _ in truth:
            while rng.random() > miss and len(guesses) < found[1]:
                guesses.append([class_ if rng.random() < 0.9 else rng.randrange(classes), rng.randrange(levels),
                                *moved(rng, sides, most)])
                if rng.random() < 0.6:
                    break
        while len(guesses) < rng.randint(*found):
            guesses.append([rng.randrange(classes), rng.randrange(levels), *box(rng)])
        rng.shuffle(guesses)
        # A metric is given the best first, and equals in the order they came.
        guesses.sort(key=lambda guess: -guess[1])
        listed.append({"known": truth + (crowds if around else []), "found": guesses})
    return {"name": name, "images": listed, **scored(listed)}


def scored(images):
    truth = {"images": [], "annotations": [], "categories": []}
    results = []
    classes = set()
    for number, image in enumerate(images, 1):
        truth["images"].append({"id": number})
        for class_, left, top, width, height, crowd in image["known"]:
            classes.add(class_)
            truth["annotations"].append({
                "id": len(truth["annotations"]) + 1, "image_id": number, "category_id": class_ + 1,
                "bbox": [left, top, width, height], "area": width * height, "iscrowd": crowd})
        for class_, score, *sides in image["found"]:
            classes.add(class_)
            results.append({"image_id": number, "category_id": class_ + 1, "bbox": sides, "score": score / 64})
    truth["categories"] = [{"id": class_ + 1} for class_ in sorted(classes)]
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = truth
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(results) if results else COCO(), "bbox")
        if not results:
            return {"map_50": 0.0, "map_50_95": 0.0}
        evaluation.evaluate()
        evaluation.accumulate()
    # [threshold, recall, class, area, most detections]
    precision = evaluation.eval["precision"][:, :, :, 0, 2]
    mean = lambda values: float(numpy.mean(values[values > -1])) if (values > -1).any() else None
    return {"map_50": mean(precision[0]), "map_50_95": mean(precision)}


CASES = [
    case("one class", 1, 6, 1, (1, 5), (0, 8)),
    case("several classes", 2, 10, 4, (0, 6), (0, 10)),
    case("empty images", 3, 12, 3, (0, 1), (0, 2)),
    case("nothing known", 4, 3, 2, (0, 0), (1, 4)),
    case("equal scores", 5, 8, 2, (1, 6), (0, 10), levels=3),
    case("crowds", 6, 12, 2, (1, 6), (2, 12), crowd=0.3),
    case("only crowds of a class", 7, 6, 5, (1, 3), (2, 8), crowd=0.7),
    case("crowds and equal scores", 8, 10, 2, (2, 8), (4, 16), crowd=0.25, levels=4, most=10),
    case("objects in crowds", 13, 10, 2, (2, 5), (3, 10), around=True),
    case("many classes", 9, 20, 60, (2, 8), (2, 12)),
    case("exact boxes", 10, 6, 3, (1, 5), (0, 6), most=0),
    case("boxes on each other", 11, 6, 1, (6, 12), (8, 24), most=16, miss=0.05),
    case("more than a hundred in an image", 12, 2, 1, (20, 30), (150, 160), levels=9, miss=0.1),
]

lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in CASES)
(pathlib.Path(__file__).parent / "cases.json").write_text(f"[\n{lines}\n]\n")
for one in CASES:
    print(one["name"], one["map_50"], one["map_50_95"])
