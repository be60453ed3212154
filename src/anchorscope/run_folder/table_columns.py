"""List the columns of every table of a run, in order, for its writers and readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from anchorscope.records import MODES, FindingName

Columns = tuple[str, ...]


def _names(text: str) -> Columns:
    return tuple(text.split())


LAYERS = _names(
    "model dataset layer mode pathway n delta_p delta_p_low delta_p_high "
    "delta_logit delta_logit_low delta_logit_high"
)
# The neutral control's own Q and A, by its own flips: curves to compare with LAYERS.
CONTROL_LAYERS = (*LAYERS, "intervention")
PROBES = _names("model dataset layer auroc auroc_low auroc_high accuracy n_train n_test")
CONTROLS = _names(
    "model dataset layer intervention flip_rate flip_rate_low flip_rate_high delta_p n"
)
# strict.csv has many more, a column for every number of strict mode; these are always there.
STRICT = _names(
    "model dataset layer n kappa group_explained collapse paper_gap paper_null_low paper_null_high "
    "strict_gap strict_null_low strict_null_high"
)
FINDINGS = _names(
    "model dataset finding by layers n gap gap_low gap_high power_half power_fifth "
    # The answers to the five questions.
    "why untested layer sets same_gap reliability "
    "effect effect_low effect_high effect_logit effect_logit_low effect_logit_high "
    "effect_flips effect_flips_low effect_flips_high effect_p question_p "
    "exact_share exact_share_low exact_share_high content_share content_share_low "
    "content_share_high sides sides_low sides_high sides_null sides_p "
    "retest retest_low retest_high retest_p within road dip_p uniform_p bic kappa kappa_low "
    "retest_kappa share_q cells belief within_p told told_by_rule finder "
    "effect_logit_right effect_logit_right_low effect_logit_right_high "
    "effect_logit_wrong effect_logit_wrong_low effect_logit_wrong_high"
)
CLAIMS = _names(
    "claim statement source paper_value paper_decision strict_value strict_decision model dataset "
    "finding paper_low paper_high paper_p strict_low strict_high strict_p"
)
SPANS = _names("dataset finder_a finder_b n jaccard identical")
ABLATION = _names(
    "variant dataset layer paper_gap paper_low paper_high paper_decision strict_gap gap_low "
    "gap_high strict_decision finding"
)
ROBUST = _names(
    "variant dataset layer n paper_gap same_gap strict_gap gap_low gap_high finding agrees"
)
PATHWAYS = _names("id dataset layer mode z prediction logit_clean logit_knockout pathway")
# remaining/readings has a row for each probe, and a column for each pass behind these.
ProbeName = Literal["paper", "a", "b"]
READINGS = _names("id dataset entity z fold layer probe")
# samples.parquet has all fields of a sample; every reader relies on these.
SAMPLES = _names(
    "id dataset question answers answer verdict finder span_starts span_stops "
    "answer_start answer_stop exact_question exact_answer entity kind"
)
# The key columns of each table: no two rows have the same key, and the table is not empty.
KEYS: Mapping[str, Columns] = {
    "layers": _names("dataset layer mode pathway"),
    "probes": _names("dataset layer"),
    "controls": _names("dataset layer intervention"),
    "strict": _names("dataset layer"),
    "findings": _names("dataset"),
    "pathways": _names("id layer mode"),
}
# The values of these columns in the tables above; a sample may be in neither group.
WORDS: Mapping[str, tuple[object, ...]] = {
    "mode": MODES, "pathway": ("Q", "A", None), "z": (0, 1), "prediction": (0, 1),
    "finding": get_args(FindingName), "by": ("", "belief", "kinds", "finder"),
}  # fmt: skip

# The pieces of evidence as --evidence names them, each with its tables. A piece is a module of
# that name in `evidence` and, where it has a table, one in `show.evidence`.
PIECES: Mapping[str, Mapping[str, Columns]] = {
    "patching": {
        "patching": _names(
            "model dataset layer intervention mode subset pathway n flip_rate flip_low flip_high"
        ),
        "patching_gap": _names(
            "model dataset layer intervention less mode subset n gap gap_low gap_high"
        ),
    },
    "answer-only": {
        "answer_only": _names(
            "model dataset layer mode subset pathway n delta_p delta_p_low delta_p_high "
            "delta_logit delta_logit_low delta_logit_high"
        ),
        "question_probe": _names("model dataset layer auroc auroc_low auroc_high n"),
    },
    "saliency": {
        "saliency": _names("model dataset loss source subset n mean low high dip_p bic layer"),
    },
    "boundary": {
        "boundary": _names("model dataset layer mode subset measure pathway n value low high p"),
        "boundary_model": _names("model dataset layer mode term coefficient low high p n"),
    },
    "awareness": {
        "awareness": _names("model dataset layer mode subset predictor n auroc low high"),
        "awareness_gap": _names("model dataset layer mode subset less n gap low high"),
    },
    "heads": {
        "heads": _names("model dataset block head set layer n delta_p low high flip_rate"),
        "heads_agreement": _names("dataset_a dataset_b spearman low high n"),
    },
    "windows": {
        "windows": _names(
            "model dataset layer layers mode pathway n delta_p delta_p_low delta_p_high "
            "delta_logit delta_logit_low delta_logit_high"
        ),
    },
    "detectors": {},
}
EVIDENCE: Mapping[str, Columns] = {
    name: columns for tables in PIECES.values() for name, columns in tables.items()
}

# The model's own output, under outputs/<pass>/, and by pathway. `delta_log_p` is of all answer
# tokens up to the probe position (their mean), `rank` the median rank of the first.
OUTPUT_ROWS = _names("id pass log_p_first log_p rank")
OUTPUT = _names(
    "model dataset pass pathway delta_log_p delta_log_p_low delta_log_p_high rank n "
    "predicted delta_log_p_first layer"
)
ASSOCIATED = _names("model dataset verdict pathway n associated associated_low associated_high")

# What evidence reads sample by sample, under evidence/<name>/.
SALIENCY_ROWS = _names("id dataset loss source layer saliency")
HEADS_ROWS = _names("id dataset block head set layer logit_clean logit_knockout")
DONOR_ROWS = _names("id kind donor same_relation resized popularity_gap")
# Further columns of these files, which may be missing.
PATCHING_MORE = _names("floor")
DONOR_MORE = _names("whole")
P_TRUE_ROWS = _names("id p_true")
SAMPLED_ROWS = _names("id number text log_prob tokens passes ms")

# Columns that hold text in every table that has them: a dataset called 'NA' is a name.
TEXT = frozenset(
    _names(
        "model dataset mode pathway intervention finder_a finder_b id finding why within collapse "
        "variant subset loss measure term predictor set layers dataset_a dataset_b claim "
        "statement source paper_decision strict_decision road control kind less donor text by "
        "untested surface pass predicted verdict"
    )
)
