"""The results folder: where experiments, comparisons and federations end, and figures, reports and trackers begin.

    runs/            one file per finished run, kept as it finishes
    history.parquet  every recorded round of every run, with the names of its curve: method, variant and parameter
    summary.csv      one row per curve; summary.md is the same table to read, summary.tex for papers
    setup.json       what was run: the experiment, the problem with its clients, f*, versions
    model.npz        the model, and what it is a model of; model.json is the same to read, with how it was trained

A comparison (:mod:`fedmls.benchmark.compare`) has points.parquet, chosen.csv and problems.csv in place of the history
and the summary.

layout.py   the names of the files, and of the columns that name a curve
write.py    writes the folder;  read.py: reads it, also as earlier versions wrote it
setup.py    the set-up
summary.py  the summary, as a table and as text: the one statistic;  latex.py: tables for papers
live.py     what there is of an experiment that is not finished;  events.py: of a federation
model.py    the model;  pipeline.py: the model as a scikit-learn pipeline, and its predictions for a file
held_out.py  the model's scores on held-out rows
"""
