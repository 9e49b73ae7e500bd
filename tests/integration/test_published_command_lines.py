"""Command lines that public projects with Sacred publish, each under stock Sacred and under the lab, with one config.

The scopes are rebuilt from what the projects declare, and hold no more than what their lines touch. `REJECTED` lists
the lines that stock Sacred accepts and the lab does not, each with its reason.
"""

# ruff: noqa: C408, N806  # entries are named and written as the projects do

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from sacred import cli_option
from sacred.commands import print_config

from sacristan.configs import to_plain
from tests.integration.test_idioms_of_sacred import LABS

PROJECTS = []

# What the lab says to each line that only stock Sacred accepts, with the reason.
REJECTED = {
    # a word for a bool: `write_images: False  # or 'debug', 'pretty'`
    "write_images=pretty": "write_images: got 'pretty' (str), expected True or False",
    "tracker_cfg.public_detections=min": "tracker_cfg.public_detections: got 'min_iou_0_5' (str), expected True or Fa",
    # a typed key that its dict does not have, which the script reads from the command line itself
    "environment.config_file=": "environment.config_file: got 'openaiEnv.yaml', but there is no such entry; envi",
    # three slips that were published, and run without effect under Sacred
    "entropy_loss_ceof_test=": "loss.entropy_loss_ceof_test: got 0.05, but there is no such entry; did you mean loss.e",
}


def published(source, *lines):
    """Register what makes the experiment of a project, with its published lines and where they stand."""

    def register(make):
        PROJECTS.append((source, make, lines))
        return make

    return register


def write(name, entries):
    """Write a config file of a project, and return its path."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries) if path.suffix == ".json" else yaml.safe_dump(entries))
    return name


# Vision and language


def losses(**weights):
    return {"itm": 0, "mlm": 0, "vqa": 0, "nlvr2": 0, "irtr": 0, "snli": 0, **weights}


@published(
    "dandelin/ViLT, TRAIN.md",
    "data_root=/data2/dsets/dataset num_gpus=8 num_nodes=1 task_mlm_itm whole_word_masking=True step200k "
    "per_gpu_batchsize=64",
    "data_root=/data2/dsets/dataset num_gpus=8 num_nodes=1 task_finetune_vqa_trainval_randaug per_gpu_batchsize=64 "
    'load_path="weights/vilt_200k_mlm_itm.ckpt"',
    "data_root=/data2/dsets/dataset num_gpus=8 num_nodes=1 task_finetune_nlvr2_randaug per_gpu_batchsize=32 "
    'load_path="weights/vilt_200k_mlm_itm.ckpt"',
    "data_root=/data2/dsets/dataset num_gpus=8 num_nodes=1 task_finetune_irtr_coco_randaug per_gpu_batchsize=4 "
    'load_path="weights/vilt_200k_mlm_itm.ckpt"',
)
def vilt(lab, words):
    ex = lab.Experiment("ViLT", save_git_info=False)

    @ex.config
    def config():
        seed = 0
        datasets = ["coco", "vg", "sbu", "gcc"]
        loss_names = losses(itm=1, mlm=1)
        train_transform_keys = ["pixelbert"]
        max_image_len = -1
        whole_word_masking = False
        draw_false_text = 0
        learning_rate = 1e-4
        max_epoch = 100
        max_steps = 25000
        warmup_steps = 2500
        val_check_interval = 1.0
        lr_mult = 1
        data_root = ""
        per_gpu_batchsize = 0
        num_gpus = 1
        num_nodes = 1
        load_path = ""

    @ex.named_config
    def task_mlm_itm():
        loss_names = losses(itm=1, mlm=1)
        max_epoch = 10
        max_image_len = 200

    @ex.named_config
    def task_finetune_vqa_trainval_randaug():
        datasets = ["vqa"]
        loss_names = losses(vqa=1)
        max_steps = None
        warmup_steps = 0.1
        val_check_interval = 0.1
        lr_mult = 10

    @ex.named_config
    def task_finetune_nlvr2_randaug():
        datasets = ["nlvr2"]
        train_transform_keys = ["pixelbert_randaug"]
        loss_names = losses(nlvr2=1)
        max_steps = None
        warmup_steps = 0.1

    @ex.named_config
    def task_finetune_irtr_coco_randaug():
        datasets = ["coco"]
        loss_names = losses(itm=0.5, irtr=1)
        max_steps = None
        warmup_steps = 0.1
        draw_false_text = 15

    @ex.named_config
    def step200k():
        max_epoch = 200
        max_steps = 200000

    ex.main(lambda _config: _config)
    return ex


@published(
    "zdou0830/METER, README.md",
    "data_root=/data2/dsets/dataset num_gpus=8 num_nodes=1 task_mlm_itm_clip_bert per_gpu_batchsize=32 clip16 "
    "text_roberta image_size=288",
    "data_root=/data2/dsets/dataset num_gpus=8 num_nodes=1 task_finetune_vqa_clip_bert per_gpu_batchsize=32 "
    "load_path=meter_pretrain.ckpt clip16 text_roberta image_size=576 clip_randaug",
    "data_root=/data2/dsets/dataset num_gpus=8 num_nodes=1 task_finetune_vqa_clip_bert per_gpu_batchsize=32 "
    "load_path=meter_vqa.ckpt clip16 text_roberta image_size=576 test_only=True",
)
@published(
    "microsoft/BridgeTower, scripts/pre_train.sh and ftfpt_base_nlvr2.sh",
    "run_name=pt_288_32_128_1e-5_202211240000 task_mlm_itm_clip_bert bt clip16 text_roberta "
    "data_root='~/BT/dataset/pre-train' num_gpus=8 num_nodes=8 image_size=288 per_gpu_batchsize=32 "
    "per_gpu_eval_batchsize=128 learning_rate=1e-5",
    "run_name=ftfpt_384_8 task_finetune_snli_clip_bert bt clip16 text_roberta blip_randaug_wc num_gpus=8 num_nodes=1 "
    "load_path=~/BT/best_checkpoints/BridgeTower_pt_base.ckpt image_size=384 per_gpu_batchsize=8 "
    "per_gpu_eval_batchsize=32 learning_rate=5e-6 batch_size=64 max_epoch=10 warmup_steps=0.1 weight_decay=0.008 "
    "lr_mult_head=10 lr_mult_cross_modal=5 task_head_layers=2 head_hidden_scale=1.5",
)
def meter(lab, words):
    ex = lab.Experiment("METER", save_git_info=False)

    @ex.config
    def config():
        seed = 0
        loss_names = losses(itm=1, mlm=1)
        run_name = "finetune"
        batch_size = 4096
        train_transform_keys = ["clip"]
        image_size = 224
        patch_size = 32
        tokenizer = "bert-base-uncased"
        vit = "ViT-B/32"
        learning_rate = 1e-5
        weight_decay = 0.01
        max_epoch = 100
        max_steps = 100000
        warmup_steps = 10000
        lr_mult_head = 5
        lr_mult_cross_modal = 5
        task_head_layers = 2
        head_hidden_scale = 1
        model_type = "BT"
        per_gpu_eval_batchsize = 0
        test_only = False
        data_root = ""
        per_gpu_batchsize = 0
        num_gpus = 8
        num_nodes = 1
        load_path = ""

    @ex.named_config
    def task_mlm_itm_clip_bert():
        max_epoch = 10
        warmup_steps = 0.1

    @ex.named_config
    def task_finetune_vqa_clip_bert():
        loss_names = losses(vqa=1)
        max_steps = None
        warmup_steps = 0.1
        learning_rate = 5e-6
        lr_mult_head = 50
        image_size = 576

    @ex.named_config
    def task_finetune_snli_clip_bert():
        loss_names = losses(snli=1)
        max_steps = -1
        warmup_steps = 0.1
        learning_rate = 2e-6
        lr_mult_head = 10

    @ex.named_config
    def bt():
        model_type = "BT"

    @ex.named_config
    def blip_randaug_wc():
        train_transform_keys = ["blip_randaug_wc"]

    @ex.named_config
    def clip16():
        vit = "ViT-B/16"
        image_size = 224
        patch_size = 16

    @ex.named_config
    def text_roberta():
        tokenizer = "roberta-base"

    @ex.named_config
    def clip_randaug():
        train_transform_keys = ["clip_randaug"]

    ex.main(lambda _config: _config)
    return ex


@published(
    "kaixin96/PANet, README.md and experiments/*.sh",
    "gpu_id=2",
    "gpu_id=0 mode='train' dataset='VOC' label_sets=0 model.align=True task.n_ways=1 task.n_shots=5",
    "gpu_id=1 mode='test' notrain=True snapshot='./runs/PANet_VOC_sets_1_1way_1shot_[train]/1/snapshots/30000.pth'",
)
def panet(lab, words):
    ex = lab.Experiment("PANet", save_git_info=False)

    @ex.config
    def config():
        input_size = (417, 417)
        seed = 1234
        cuda_visable = "0, 1, 2, 3, 4, 5, 6, 7"
        gpu_id = 0
        mode = "test"
        if mode == "train":
            dataset = "VOC"
            label_sets = 0
            model = {"align": True}
            task = {"n_ways": 1, "n_shots": 1, "n_queries": 1}
        else:
            notrain = False
            snapshot = "./runs/PANet_VOC_sets_0_1way_1shot_[train]/1/snapshots/30000.pth"
            dataset = "VOC" if "VOC" in snapshot else "COCO"
            model = {}
            for key in ["align"]:
                model[key] = key in snapshot
            label_sets = int(snapshot.split("_sets_")[1][0])
            task = {"n_ways": 1, "n_shots": 1, "n_queries": 1}
        exp_str = "_".join([dataset, *[key for key, value in model.items() if value], f"sets_{label_sets}"])

    @ex.config_hook
    def watch(config, command_name, logger):
        assert config["exp_str"].startswith(config["dataset"])
        return config

    ex.main(lambda _config: _config)
    return ex


@published(
    "svip-lab/PlanarReconstruction, README.md",
    "train with dataset.root_dir=/path/to/save/processd/data",
    "eval with dataset.root_dir=/path/to/save/processd/data resume_dir=/path/to/pretrained.pt dataset.batch_size=1",
)
def planar(lab, words):
    ex = lab.Experiment("planar", save_git_info=False)
    dataset = {"root_dir": "/new_disk2/yuzh/PlaneNetData/", "batch_size": 16, "num_workers": 8}
    entries = {"seed": 123, "num_gpus": 1, "resume_dir": "None", "solver": {"lr": 0.0001}, "dataset": dataset}
    ex.add_config(write("configs/config.yaml", entries))

    @ex.command
    def train(_run, _log):
        return _run.config

    @ex.command
    def eval(_run, _log):
        return _run.config

    return ex


# Tracking


def tracker(lab):
    ex = lab.Experiment("train", save_git_info=False)
    defaults = {"lr": 0.0001, "lr_drop": 40, "epochs": 50, "deformable": False, "backbone": "resnet101"}
    defaults |= {"tracking": False, "dataset": "coco", "train_split": "train", "crowdhuman_train_split": None}
    defaults |= {"img_transform": {"max_size": 1333, "val_width": 800}, "output_dir": "", "resume": "", "no_vis": False}
    defaults |= {"num_queries": 100, "seed": 42}
    ex.add_config(write("cfgs/train.yaml", defaults))
    named = {
        "deformable": {"deformable": True, "backbone": "resnet50", "num_queries": 300},
        "tracking": {"tracking": True},
        "mot17": {"dataset": "mot", "epochs": 40},
        "crowdhuman": {"dataset": "mot_crowdhuman", "crowdhuman_train_split": "train_val", "train_split": None},
        "full_res": {"img_transform": {"max_size": 1920, "val_width": 1080}},
    }
    for name, entries in named.items():
        ex.add_named_config(name, write(f"cfgs/train_{name}.yaml", entries))
    ex.main(lambda _config: _config)
    return ex


@published(
    "timmeinhardt/trackformer, docs/TRAIN.md",
    "deformable tracking crowdhuman full_res output_dir=models/crowdhuman_train_val_deformable_v2",
    "deformable tracking mot17 full_res resume=models/r50_deformable_detr-checkpoint.pth "
    "output_dir=models/mot17_train_deformable_public_v2 epochs=40 lr_drop=10",
    "no_vis=True",
)
def trackformer_train(lab, words):
    return tracker(lab)


@published(
    "timmeinhardt/trackformer, docs/TRAIN.md: an experiment as an ingredient",
    "num_gpus=8 vram=16GB cluster=slurm train.deformable train.tracking train.crowdhuman train.full_res "
    "train.output_dir=models/crowdhuman_train_val_deformable_v2",
)
def trackformer_submit(lab, words):
    ex = lab.Experiment("submit", ingredients=[tracker(lab)], save_git_info=False)
    entries = {"num_gpus": 1, "vram": "12GB", "timeout": 4320, "job_dir": "", "cluster": "debug"}
    ex.add_config(write("cfgs/submit.yaml", entries))
    ex.main(lambda _config: _config)
    return ex


@published(
    "timmeinhardt/trackformer, README.md",
    "dataset_name=MOTS20-ALL obj_detect_checkpoint_file=models/mots20_train_masks/checkpoint.pth",
    "dataset_name=DEMO data_root_dir=data/snakeboard output_dir=data/snakeboard write_images=pretty",
    "reid tracker_cfg.public_detections=min_iou_0_5 "
    "obj_detect_checkpoint_file=models/mot17_deformable_multi_frame/checkpoint_epoch_50.pth",
)
def trackformer_track(lab, words):
    ex = lab.Experiment("track", save_git_info=False)
    entries = {"output_dir": None, "seed": 666, "dataset_name": "MOT17-ALL-ALL", "data_root_dir": "data"}
    entries |= {"obj_detect_checkpoint_file": "models/mot17/checkpoint.pth", "write_images": False}
    entries |= {"tracker_cfg": {"public_detections": False, "inactive_patience": -1, "reid_sim_threshold": 0.0}}
    ex.add_config(write("cfgs/track.yaml", entries))
    ex.add_named_config("reid", write("cfgs/track_reid.yaml", {"tracker_cfg": {"inactive_patience": 5}}))
    ex.main(lambda seed, tracker_cfg, write_images, _config, obj_detector_model=None: _config)
    return ex


@published(
    "dvl-tum/mot_neural_solver, README.md",
    "data_splits.train=all_train train_params.save_every_epoch=True train_params.num_epochs=6",
    "run_id=your_config_name cross_val_split=1",
    "configs/no_tracktor_cfg.yaml",
)
def mot_solver(lab, words):
    ex = lab.Experiment("solver", save_git_info=False)
    params = {"batch_size": 8, "num_epochs": 25, "lr_scheduler": {"type": None}, "save_every_epoch": False}
    features = {"det_file_name": "tracktor_prepr_det", "edge_feats_to_use": ["emb_dist", "secs"], "top_k_nns": 50}
    entries = {"train_params": params, "dataset_params": features | {"target_fps_dict": {"moving": 9, "static": 6}}}
    entries |= {"data_splits": {"train": ["mot15_train_gt", "mot17_split_1_train_gt"], "val": "split_1_val"}}
    entries |= {"eval_params": {"add_tracktor_detects": True, "val_percent_check": 0.15}}
    ex.add_config(write("configs/tracking_cfg.yaml", entries))
    ex.add_config({"run_id": "train_w_default_config", "add_date": True, "cross_val_split": None})
    changed = {"det_file_name": "frcnn_prepr_det", "top_k_nns": 70, "target_fps_dict": {"moving": 15, "static": 10}}
    write("configs/no_tracktor_cfg.yaml", {"dataset_params": changed, "eval_params": {"add_tracktor_detects": False}})

    @ex.config
    def derived(cross_val_split, eval_params, dataset_params, data_splits):
        if "tracktor" not in dataset_params["det_file_name"]:
            eval_params["add_tracktor_detects"] = False
        if cross_val_split is not None:
            data_splits["train"] = ["mot15_train_gt", f"mot17_split_{cross_val_split}_train_gt"]
            data_splits["val"] = [f"split_{cross_val_split}_val"]
        if data_splits["train"] == "all_train":
            data_splits["val"] = []
            eval_params["val_percent_check"] = 0

    ex.main(lambda _config, _run: _config)
    return ex


# Audio


@published(
    "kkoutini/PaSST, README.md and fsd50k/README.md",
    "with trainer.precision=16 models.net.arch=passt_deit_bd_p16_384 models.net.u_patchout=400 "
    "models.net.s_patchout_f=0 models.net.s_patchout_t=0 -p",
    'with trainer.precision=16 models.net.arch=passt_deit_bd_p16_384 -p -c "PaSST base 2 GPU"',
    "evaluate_only with passt_s_swa_p16_s16_128_ap473",
    "evaluate_only with trainer.precision=16 ensemble_s16_14",
    "with passt_s_swa_p16_s16_128_ap473 models.net.s_patchout_t=10 models.net.s_patchout_f=1 trainer.precision=16 -p",
)
def passt(lab, words):
    ex = lab.Experiment("audioset", save_git_info=False)
    ex.add_config(trainer={"precision": 32, "benchmark": False, "limit_train_batches": 1.0}, wandb={"project": None})
    ex.add_config(models={"net": {"fstride": 10, "tstride": 10, "u_patchout": 0, "s_patchout_f": 0}})

    @ex.config
    def config():
        models = {
            "net": {"arch": "passt_deit_bd_p16_384", "n_classes": 527, "s_patchout_t": 40, "s_patchout_f": 4},
            "mel": {"n_mels": 128, "fmax": None, "norm": 1},
        }
        trainer = dict(max_epochs=130, gpus=1, weights_summary="full", benchmark=True)
        lr = 0.00002

    @ex.named_config
    def passt_s_swa_p16_s16_128_ap473():
        models = {"net": {"arch": "passt_s_swa_p16_s16_128_ap473", "fstride": 16, "tstride": 16}}

    @ex.named_config
    def ensemble_s16_14():
        models = {
            "net": {
                "arch": "ensemble_s16",
                "fstride": None,
                "tstride": None,
                "instance_cmd": "get_ensemble_model",
                "arch_list": [("passt_s_swa_p16_s14_128_ap471", 14, 14), ("passt_s_swa_p16_s16_128_ap473", 16, 16)],
            }
        }

    @ex.command
    def evaluate_only(_run, _config, trainer, models):
        return _config

    ex.main(lambda _config, models: _config)
    return ex


@published(
    "OptimusPrimus/dcase2023_task6b, README.md and scripts/3_scale_audio_embedding_model_passt_s.sh",
    "data_loader.batch_size=64 data_loader.batch_size_eval=32 audio_loader.max_audio_length=30 "
    "audio_features.segment_length=10 audio_features.name=passt sentence_features.model=bert-base-uncased "
    "initial_tau=0.01 s_patchout_f=2 s_patchout_t=15 lr=2e-5 min_lr=1e-7 rampdown_type=cosine max_epochs=16 "
    "rampdown_stop=15 warmup_length=1 rampdown_start=1 audio_features.adopt_n_layers=0 "
    "sentence_features.adopt_n_layers=0 train_on=clothov2 load_parameters=None gpt_augment_p=0.0",
    "data_loader.batch_size=32 data_loader.batch_size_eval=1 audio_loader.max_audio_length=30 "
    "audio_features.segment_length=10 audio_features.name=passt_s sentence_features.model=bert-base-uncased eda_p=0.0 "
    "eda_p_syn=0.3 eda_p_del=0.2 translate_augment_p=0.0 initial_tau=0.01 s_patchout_f=3 s_patchout_t=50 lr=2e-5 "
    "min_lr=1e-7 rampdown_type=cosine max_epochs=16 rampdown_stop=15 warmup_length=1 rampdown_start=1 "
    "audio_features.adopt_n_layers=0 sentence_features.adopt_n_layers=0 train_on=allplus load_parameters=None "
    "gpt_augment_p=0.0",
)
def retrieval(lab, words):
    loader = lab.Ingredient("data_loader", save_git_info=False)
    loader.add_config(batch_size=32, batch_size_eval=32)
    audio = lab.Ingredient("audio_loader", save_git_info=False)
    audio.add_config(sample_rate=32000, max_audio_length=10)
    ex = lab.Experiment("audio_retrieval", ingredients=[loader, audio], save_git_info=False)

    @ex.config
    def config():
        load_parameters = None
        audio_features = {"name": "cnn10", "frozen": False, "adopt_n_layers": 0, "segment_length": 30}
        sentence_features = {"model": "bert-base-uncased", "adopt_n_layers": 0}
        initial_tau = 0.02
        train_on = "clothov2"
        s_patchout_t = 0
        s_patchout_f = 0
        gpt_augment_p = 0.0
        translate_augment_p = 0
        eda_p = 0.0
        eda_p_syn = 0.0
        eda_p_del = 0.0
        warmup_length = 3
        rampdown_start = 3
        rampdown_stop = 25
        max_epochs = 25
        lr = 2e-5
        min_lr = 1e-7
        rampdown_type = "cosine"

    ex.main(lambda _config: _config)
    return ex


@published(
    "jongwook/onsets-and-frames, README.md",
    "logdir=runs/model iterations=1000000",
)
def onsets(lab, words):
    ex = lab.Experiment("train_transcriber", save_git_info=False)

    @ex.config
    def config():
        logdir = "runs/transcriber"
        iterations = 500000
        resume_iteration = None
        sequence_length = 327680
        leave_one_out = None
        validation_length = sequence_length

    ex.main(lambda _config, logdir: _config)
    return ex


class TasNet:
    pass


@published(
    "fgnt/padertorch, contrib/examples/source_separation/tasnet/README.md",
    "dprnn database_json=wsj0_2mix_8k.json",
    "database_json=wsj0_2mix_8k.json dprnn trainer.loss_weights.log-mse=1 trainer.loss_weights.si-sdr=0",
    "database_json=wsj0_2mix_8k.json dprnn log_mse",
    "database_json=wsj0_2mix_8k.json dprnn win2",
    "database_json=wsj0_2mix_8k.json dprnn stft istft",
)
def tasnet(lab, words):
    Path("wsj0_2mix_8k.json").write_text("{}")
    ex = lab.Experiment("tasnet", save_git_info=False)

    @ex.config
    def config():
        batch_size = 4
        database_json = None
        if database_json is None:
            raise ValueError("set the path to the database")
        feat_size = 64
        trainer = {
            "model": {
                "factory": TasNet,
                "encoder": {"factory": TasNet, "window_length": 16, "feature_size": feat_size},
                "decoder": {"factory": TasNet, "window_length": 16, "feature_size": feat_size},
            },
            "storage_dir": None,
            "summary_trigger": (1000, "iteration"),
            "loss_weights": {"si-sdr": 1.0, "log-mse": 0.0, "log1p-mse": 0.0},
        }
        if trainer["storage_dir"] is None:
            trainer["storage_dir"] = "models/tasnet/1"

    @ex.named_config
    def dprnn():
        trainer = {"model": {"separator": {"factory": TasNet, "input_size": 64, "window_length": 100, "hop_size": 50}}}

    @ex.named_config
    def win2():
        batch_size = 1
        trainer = {
            "model": {
                "encoder": {"window_length": 2},
                "separator": {"window_length": 250, "hop_size": 125},
                "decoder": {"window_length": 2},
            }
        }

    @ex.named_config
    def stft():
        trainer = {"model": {"encoder": {"factory": f"{TasNet.__module__}.TasNet"}}}

    @ex.named_config
    def istft():
        trainer = {"model": {"decoder": {"factory": f"{TasNet.__module__}.TasNet"}}}

    @ex.named_config
    def log_mse():
        trainer = {"loss_weights": {"si-sdr": 0.0, "log-mse": 1.0}}

    train = ex.capture(lambda trainer: trainer)

    @ex.main
    def main(_config, _run):
        print_config(_run)
        train()
        return _config

    return ex


@published(
    "fgnt/sms_wsj, README.md",
    "egs_path=/kaldi/egs/ json_path=/path/to/sms_wsj.json",
)
def sms_wsj(lab, words):
    ex = lab.Experiment("Kaldi ASR baseline training", save_git_info=False)

    @ex.config
    def config():
        egs_path = None
        json_path = None
        channels = [0, 2, 4]
        gmm_dir = None
        assert egs_path is not None, "set egs_path"
        assert json_path is not None, "set json_path"

    ex.main(lambda _config: _config)
    return ex


@published(
    "fgnt/sms_wsj, sms_wsj/database/create_rirs.py",
    "database_path=temp_wsj_bss debug=True",
)
def create_rirs(lab, words):
    ex = lab.Experiment("create_rirs", save_git_info=False)

    @ex.config
    def config():
        debug = False
        database_path = ""
        geometry = dict(number_of_sources=4, center=[[4.0], [3.0], [1.5]], room=[[8], [6], [3]])
        datasets = dict(cv_dev93=dict(count=491 * 2))

    ex.main(lambda _config: _config)
    return ex


# Objects in images


@published(
    "sjoerdvansteenkiste/Neural-EM, README.md",
    "dataset.shapes network.shapes nem.k=4 nem.nr_steps=15 noise.prob=0.1",
    "dataset.shapes network.NEM nem.k=4 nem.nr_steps=15 noise.prob=0.1",
    "nem.sequential dataset.flying_shapes network.flying_shapes nem.k=3 nem.nr_steps=20",
    "nem.sequential dataset.flying_mnist_hard_2 network.flying_mnist nem.k=2 nem.nr_steps=20 nem.loss_inter_weight=0.2 "
    "training.params.learning_rate=0.0005 net_path=debug_out/best",
    "run_from_file with nem.sequential dataset.flying_shapes network.flying_shapes nem.k=3 nem.nr_steps=20 "
    "run_config.AMI=False",
)
@published(
    "sjoerdvansteenkiste/Relational-NEM, README.md",
    "dataset.balls4mass64 network.r_nem nem.k=5",
    "dataset.atari network.enc_dec_84_atari network.r_nem_actions no_score no_collisions nem.k=4 nem.nr_steps=25 "
    "training.batch_size=32 feed_actions=True noise.prob=0.002",
    "run_from_file with dataset.balls678mass64 network.r_nem nem.k=8",
)
def neural_em(lab, words):
    data = lab.Ingredient("dataset", save_git_info=False)
    data.add_config(name="shapes", path="./data", binary=True, train_size=None, split="")
    for name in "shapes", "flying_shapes", "flying_mnist_hard_2", "balls4mass64", "balls678mass64", "atari":
        data.add_named_config(name, {"name": name, "binary": True, "train_size": 50000})
    net = lab.Ingredient("network", save_git_info=False)

    @net.config
    def of_net():
        use_NEM_formulation = False
        input = []
        recurrent = [{"name": "rnn", "size": 250, "act": "sigmoid", "ln": False}]
        output = [{"name": "fc", "size": 784, "act": "*", "ln": False}]

    net.add_named_config("shapes", {"input": [], "output": [{"name": "fc", "size": 784, "act": "*", "ln": False}]})
    layers = [{"name": "reshape", "shape": (28, 28, 1)}, {"name": "conv", "size": 32, "kernel": (4, 4), "ln": True}]
    for name in "NEM", "flying_shapes", "flying_mnist", "r_nem", "enc_dec_84_atari":
        net.add_named_config(name, {"input": layers, "output": [{"name": "reshape", "shape": -1}]})
    net.add_named_config("r_nem_actions", {"recurrent": [{"name": "r_nem", "size": 250, "attention": []}]})
    nem = lab.Ingredient("nem", ingredients=[net], save_git_info=False)

    @nem.config
    def of_nem():
        gradient_gamma = True
        loss_inter_weight = 1.0
        loss_step_weights = "last"
        pixel_prior = {"p": 0.0, "mu": 0.0, "sigma": 0.25}
        k = 3
        nr_steps = 10

    nem.add_named_config("sequential", {"gradient_gamma": False, "loss_step_weights": "all"})
    ex = lab.Experiment("NEM", ingredients=[data, nem], save_git_info=False)

    @ex.config
    def config():
        noise = {"noise_type": "data", "prob": 0.2}
        training = {"params": {"learning_rate": 0.001}, "batch_size": 64, "clip_gradients": None}
        validation = {"batch_size": training["batch_size"], "debug_samples": [0, 1, 2]}
        feed_actions = False
        record_grouping_score = True
        record_relational_loss = "collisions"
        net_path = None
        run_config = {"usage": "test", "AMI": True, "batch_size": 100}

    ex.add_named_config("no_score", {"record_grouping_score": False})
    ex.add_named_config("no_collisions", {"record_relational_loss": None})

    @ex.command
    def run_from_file(run_config, nem, _config, net_path=None):
        return _config

    ex.main(lambda _config, training, nem: _config)
    return ex


@published(
    "pemami4911/EfficientMORL, scripts/train.sh, started by torch.distributed.launch",
    "--local_rank=0 with configs/train/tetrominoes/EMORL.json dataset.data_path=/data seed=2000 training.batch_size=8 "
    "training.run_suffix=emorl-clevr6-seed-2000 training.DDP_port=29500 training.out_dir=/out",
)
def emorl(lab, words):
    @cli_option("-r", "--local_rank")
    def local_rank(args, run):
        run.info["local_rank"] = args

    data = lab.Ingredient("dataset", save_git_info=False)
    data.add_config(data_path="", h5_path="", masks=False)
    net = lab.Ingredient("Net", save_git_info=False)
    net.add_config(input_size=[3, 64, 64], z_size=64, K=4, log_scale=-2.3)
    ex = lab.Experiment("TRAINING", [data, net], additional_cli_options=[local_rank], save_git_info=False)

    @ex.config
    def config():
        training = {
            "DDP_port": 29500,
            "batch_size": 16,
            "refinement_curriculum": [(-1, 3), (100000, 1), (200000, 1)],
            "lr": 3e-4,
            "run_suffix": "debug",
            "out_dir": "experiments",
            "geco_reconstruction_target": -23000,
            "tqdm": False,
        }

    parts = {"Net": {"K": 4, "input_size": [3, 35, 35], "log_scale": -1.2039728}, "dataset": {"masks": False}}
    training = {"refinement_curriculum": [[-1, 3], [200000, 3]], "geco_reconstruction_target": -4500, "tqdm": True}
    write("configs/train/tetrominoes/EMORL.json", parts | {"seed": 1, "training": training})
    ex.main(lambda training, seed, _run: _run.config)
    return ex


@published(
    "BorgwardtLab/topological-autoencoders, README.md and Makefile",
    "with experiments/train_model/best_runs/Spheres/TopoRegEdgeSymmetric.json device='cuda'",
    "-F exp_runs/train_model with experiments/train_model/best_runs/Spheres/TopoRegEdgeSymmetric.json",
)
def topological(lab, words):
    parts = [lab.Ingredient(name, save_git_info=False) for name in ("model", "dataset")]
    for part in parts:

        @part.config
        def of_part():
            """Model configuration."""
            name = ""
            parameters = {}

        part.capture(lambda name, parameters: None)
    ex = lab.Experiment("training", ingredients=parts, save_git_info=False)

    @ex.config
    def config():
        n_epochs = 10
        learning_rate = 1e-3
        device = "cuda"
        quiet = False
        evaluation = {"active": False, "k_min": 10, "k_max": 200, "k_step": 10, "evaluate_on": "test"}

    options = {"autoencoder_model": "MLPAutoencoder_Spheres", "toposig_kwargs": {"match_edges": "symmetric"}}
    entries = {"dataset": {"__doc__": "Dataset configuration.", "name": "Spheres", "parameters": {}}}
    entries |= {"model": {"__doc__": "Model configuration.", "name": "Topological", "parameters": options}}
    entries |= {"evaluation": {"active": True, "evaluate_on": "test", "k": 20}, "quiet": True, "n_epochs": 100}
    write("experiments/train_model/best_runs/Spheres/TopoRegEdgeSymmetric.json", entries)
    ex.main(lambda n_epochs, evaluation, _run: _run.config)
    return ex


# Reinforcement learning


@published(
    "oxwhirl/pymarl, README.md",
    "--config=qmix --env-config=sc2 with env_args.map_name=2s3z",
    "--config=qmix --env-config=sc2 with env_args.map_name=2s3z use_cuda=False",
)
@published(
    "uoe-agents/epymarl, README.md",
    "--config=qmix --env-config=gymma with env_args.time_limit=1 env_args.key=matrixgames:penalty-100-nostate-v0",
    '--config=qmix --env-config=gymma with env_args.time_limit=25 env_args.key="lbforaging:Foraging-8x8-2p-3f-v2"',
    '--config=qmix --env-config=gymma with env_args.time_limit=25 env_args.key="mpe:SimpleAdversary-v0" '
    'env_args.pretrained_wrapper="PretrainedAdversary"',
)
@published(
    "hijkzzz/pymarl2, README.md, as run.sh composes it",
    "--config=qmix --env-config=sc2 with env_args.map_name=6h_vs_8z epsilon_anneal_time=500000 td_lambda=0.3",
)
def pymarl(lab, words):
    known = {
        "--env-config=sc2": {"env": "sc2", "env_args": {"difficulty": "7", "game_version": None, "map_name": "3m"}},
        "--env-config=gymma": {"env": "gymma", "env_args": {"key": None, "time_limit": 50, "pretrained_wrapper": None}},
        "--config=qmix": {"mixer": "qmix", "epsilon_start": 1.0, "epsilon_anneal_time": 50000, "td_lambda": 0.6},
    }
    entries = {"runner": "episode", "use_cuda": True, "t_max": 10000, "checkpoint_path": "", "lr": 0.0005}
    for word in [word for word in words if word in known]:
        entries |= known[word]
        words.remove(word)
    ex = lab.Experiment("pymarl", save_git_info=False)
    ex.add_config(entries)
    ex.main(lambda _run, _config, _log: _config)
    return ex


@published(
    "HumanCompatibleAI/human_aware_rl, experiments/ppo_sp_experiments.sh and ppo_bc_experiments.sh",
    'EX_NAME="ppo_sp_simple" layout_name="simple" REW_SHAPING_HORIZON=2.5e6 LR=1e-3 PPO_RUN_TOT_TIMESTEPS=6e6 '
    'OTHER_AGENT_TYPE="sp" SEEDS="[2229, 7649, 7225, 9807,  386]" VF_COEF=1 TIMESTAMP_DIR=False',
    'EX_NAME="ppo_bc_test_random1" layout_name="random1" REW_SHAPING_HORIZON=5e6 PPO_RUN_TOT_TIMESTEPS=1.6e7 LR=1e-3 '
    'GPU_ID=0 OTHER_AGENT_TYPE="bc_test" SEEDS="[2888, 7424, 7360, 4467,  184]" VF_COEF=0.5 MINIBATCHES=15 '
    'LR_ANNEALING=1.5 SELF_PLAY_HORIZON="[2e6, 6e6]" TIMESTAMP_DIR=False',
    'EX_NAME="ppo_bc_test_random0" layout_name="random0" REW_SHAPING_HORIZON=4e6 PPO_RUN_TOT_TIMESTEPS=9e6 LR=1.5e-3 '
    "GPU_ID=0 VF_COEF=0.1 MINIBATCHES=15 LR_ANNEALING=2 SELF_PLAY_HORIZON=None TIMESTAMP_DIR=False",
)
@published(
    "HumanCompatibleAI/human_aware_rl, experiments/pbt_experiments.sh",
    'fixed_mdp layout_name="unident_s" EX_NAME="pbt_unident_s" TOTAL_STEPS_PER_AGENT=1.1e7 REW_SHAPING_HORIZON=5e6 '
    'LR=8e-4 GPU_ID=3 POPULATION_SIZE=3 SEEDS="[8015, 3554,  581, 5608, 4221]" NUM_SELECTION_GAMES=6 VF_COEF=0.5 '
    "MINIBATCHES=10 TIMESTAMP_DIR=False",
)
def overcooked(lab, words):
    ex = lab.Experiment("PPO", save_git_info=False)

    @ex.config
    def config():
        TIMESTAMP_DIR = True
        EX_NAME = "undefined_name"
        SAVE_DIR = ("now_" if TIMESTAMP_DIR else "") + EX_NAME
        OTHER_AGENT_TYPE = "bc_train"
        HM_PARAMS = [True, 0.3]
        GPU_ID = 1
        SEEDS = [0]
        LOCAL_TESTING = False
        POPULATION_SIZE = 4
        TOTAL_STEPS_PER_AGENT = 1.5e7
        NUM_SELECTION_GAMES = 10
        PPO_RUN_TOT_TIMESTEPS = 5e6
        TOTAL_BATCH_SIZE = 12000
        MINIBATCHES = 6
        LR = 1e-3
        LR_ANNEALING = 1
        VF_COEF = 0.1
        SELF_PLAY_HORIZON = None
        REW_SHAPING_HORIZON = 0
        layout_name = None
        mdp_generation_params = {"padded_mdp_shape": (11, 7), "mdp_shape_fn": ([5, 11], [5, 7])}
        GRAD_UPDATES_PER_AGENT = MINIBATCHES * (PPO_RUN_TOT_TIMESTEPS // TOTAL_BATCH_SIZE)
        params = {"SEEDS": SEEDS, "LR": LR, "mdp_params": {"layout_name": layout_name}, "VF_COEF": VF_COEF}

    @ex.named_config
    def fixed_mdp():
        LOCAL_TESTING = False
        layout_name = "simple"
        PPO_RUN_TOT_TIMESTEPS = 36000 if not LOCAL_TESTING else 1000
        LR = 5e-4

    ex.main(lambda params, _config: _config)
    return ex


@published(
    "HumanCompatibleAI/deep-rlsp, README.md",
    "base pendulum n_sample_states=1",
    "base cheetah_fw n_sample_states=50",
    'base cheetah_skill current_state_file="skills/balancing_rollouts.pkl" n_sample_states=10',
)
def deep_rlsp(lab, words):
    ex = lab.Experiment("rlsp-mujoco", save_git_info=False)

    @ex.named_config
    def base():
        prior = None
        horizon = 30
        threshold = 2.0
        reward_action_norm_factor = 0
        inverse_model_parameters = {"model": {"hidden_layer_size": 1024}, "learn": {"n_epochs": 100}}

    @ex.named_config
    def pendulum():
        env_id = "InvertedPendulum-v2"
        good_policy_path = "policies/sac_pendulum_6e4"
        n_sample_states = 50
        policy_horizon_factor = 100

    @ex.named_config
    def cheetah_fw():
        env_id = "HalfCheetah-FW-v2"
        n_sample_states = 50

    @ex.named_config
    def cheetah_skill():
        env_id = "HalfCheetah-v2"
        good_policy_path = None
        current_state_file = None

    @ex.config
    def config():
        env_id = None
        prior = "gaussian"
        horizon = 20
        policy_horizon_factor = 1
        good_policy_path = None
        current_state_file = None
        n_sample_states = 1
        threshold = 1e-2
        reward_action_norm_factor = False
        inverse_model_parameters = {"model": dict(), "learn": dict()}

    ex.main(lambda inverse_model_parameters, _run: _run.config)
    return ex


@published(
    "HumanCompatibleAI/imitation, docs/getting-started/cli.rst",
    "bc with cartpole demonstrations.n_expert_demos=50 bc.train_kwargs.n_batches=2000 expert.policy_type=ppo "
    "expert.loader_kwargs.path=tests/testdata/expert_models/cartpole_0/policies/final/model.zip",
    "dagger with cartpole dagger.total_timesteps=2000 demonstrations.n_expert_demos=10 expert.policy_type=random",
    "dagger with cartpole dagger.total_timesteps=2000 demonstrations.source=local demonstrations.path=final.npz",
    'gail with environment.gym_id="seals:seals/Swimmer-v0" total_timesteps=5000 demonstrations.n_expert_demos=50',
    # as experiments/transfer_learn_benchmark.sh composes it
    "--capture=sys --name FOO bc with cartpole seed='0' environment.fast demonstrations.fast fast",
)
def imitation(lab, words):
    environment = lab.Ingredient("environment", save_git_info=False)

    @environment.config
    def of_environment():
        num_vec = 8
        parallel = True
        max_episode_steps = None
        gym_id = "seals/CartPole-v0"
        locals()

    @environment.named_config
    def fast():
        num_vec = 2
        parallel = False
        max_episode_steps = 5

    expert = lab.Ingredient("expert", ingredients=[environment], save_git_info=False)

    @expert.config
    def of_expert():
        policy_type = "ppo-huggingface"
        loader_kwargs = dict()

    @expert.config_hook
    def hook(config, command_name, logger):
        own = config["expert"]
        if "huggingface" in own["policy_type"]:
            own["loader_kwargs"]["organization"] = "HumanCompatibleAI"
        return own

    expert.capture(lambda policy_type, loader_kwargs: None)
    demonstrations = lab.Ingredient("demonstrations", ingredients=[expert, environment], save_git_info=False)
    demonstrations.add_config(source="generated", path=None, n_expert_demos=None)
    demonstrations.add_named_config("fast", n_expert_demos=10)
    ex = lab.Experiment("train_imitation", ingredients=[demonstrations, environment], save_git_info=False)

    @ex.config
    def config():
        bc = dict(batch_size=32, l2_weight=3e-5, train_kwargs=dict(n_epochs=None, n_batches=None, log_interval=500))
        dagger = dict(use_offline_rollouts=False, total_timesteps=1e5)
        total_timesteps = int(1e6)

    @ex.named_config
    def cartpole():
        environment = dict(gym_id="CartPole-v1")
        dagger = dict(total_timesteps=20000)

    def quick():
        dagger = dict(total_timesteps=50)
        bc = dict(train_kwargs=dict(n_batches=50))

    quick.__name__ = "fast"
    ex.named_config(quick)

    @ex.command
    def bc(bc, _config):
        return _config

    @ex.command
    def dagger(bc, dagger, _config):
        return _config

    @ex.command
    def gail(total_timesteps, _config):
        return _config

    return ex


@published(
    "maximilianigl/DVRL, README.md",
    "-p with environment.config_file=openaiEnv.yaml environment.name=PongNoFrameskip-v0 "
    "algorithm.use_particle_filter=True algorithm.model.h_dim=256 algorithm.multiplier_backprop_length=10 "
    "algorithm.particle_filter.num_particles=15 opt.lr=2.0e-04 loss_function.encoding_loss_coef=0.1",
)
def dvrl(lab, words):
    ex = lab.Experiment("POMRL", save_git_info=False)
    model = {"cnn_channels": "None", "observation_type": "None", "resample": True, "h_dim": 256}
    algorithm = {"use_particle_filter": False, "multiplier_backprop_length": 5, "model": model}
    entries = {"seed": None, "cuda": "auto", "opt": {"lr": 3.0e-04}, "rl_setting": {"num_processes": 16}}
    entries |= {"algorithm": algorithm | {"particle_filter": {"num_particles": 10}}}
    ex.add_config(write("conf/default.yaml", entries | {"loss_function": {"encoding_loss_coef": 0.0}}))
    adaptation = {"cnn_channels": [32, 64, 32], "observation_type": "84x84", "encoder_batch_norm": True}
    world = {"name": "PongNoFrameskip-v0", "entry_point": False, "p_blank": 0.5, "model_adaptation": adaptation}
    ex.add_config(write("conf/openaiEnv.yaml", {"environment": world}))

    @ex.config
    def config(cuda, algorithm, environment, rl_setting, loss_function):
        device = "cpu" if cuda == "auto" else cuda
        for key in environment["model_adaptation"]:
            algorithm["model"][key] = environment["model_adaptation"][key]
        del key
        algorithm["model"]["batch_size"] = rl_setting["num_processes"]
        if loss_function["encoding_loss_coef"] == 0:
            algorithm["model"]["resample"] = False

    ex.main(lambda environment, _config: _config)
    return ex


@published(
    "maximilianigl/rl-msol, README.md",
    "-p with architecture.num_options=4 loss.c_kl_b=0.02 loss.c_kl_b_1=0.1",
    "-p with architecture.num_options=1 loss.c_kl_a=0.02 loss.c_kl_b=0. loss.entropy_loss_coef0=0.05 "
    "loss.entropy_loss_coef1=0.05 loss.entropy_loss_ceof_test=0.05",
)
def msol(lab, words):
    ex = lab.Experiment("distral", save_git_info=False)
    loss = {"c_kl_b": None, "c_kl_b_1": None, "c_kl_a": None, "c_ent_b": 0.0, "entropy_loss_coef_0": 0.1}
    loss |= {"entropy_loss_coef_1": 0.02, "entropy_loss_coef_test": 0.05}
    entries = {"seed": None, "cuda": True, "loss": loss, "architecture": {"encoder": "fc", "num_options": 1}}
    ex.add_config(write("default.yaml", entries | {"num_steps": 5, "num_test_steps": 5, "load_id": None}))

    @ex.config
    def config(num_steps, num_test_steps, loss):
        if loss["c_kl_a"] is None:
            loss["c_kl_a"] = float(loss["c_kl_b"])
            loss["fixed_a"] = False
        else:
            loss["fixed_a"] = True
        loss["c_kl_b_orig"] = loss["c_kl_b"]

    ex.main(lambda loss, architecture, _config: _config)
    return ex


# Reading


@published(
    "uclnlp/jack, docs on configuration",
    "with config='conf/jack.yaml' l2=0.001",
    "print_config with config=conf/qa/squad/fastqa.yaml l2=0.001",
    "save_config with config=conf/fastqa.yaml l2=0.001",
)
def jack(lab, words):
    ex = lab.Experiment("jack", save_git_info=False)
    entries = {"config": "./conf/jack.yaml", "model": None, "seed": 1337, "batch_size": 128, "l2": 0.0}
    ex.add_config(write("conf/jack.yaml", entries | {"train": None, "dropout": 0.0, "validation_interval": None}))
    if "fastqa" in " ".join(words):
        ex.add_config(write("conf/fastqa.yaml", {"parent_config": "./conf/jack.yaml", "model": "fastqa_reader"}))
    ex.main(lambda batch_size, config, l2, _config: _config)
    return ex


def plain(value):
    """Return a config with lists for tuples, names for classes, and no seeds, which may be drawn."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in ("seed", "__doc__")}
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"  # the lab makes the object of its name
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def config_of(lab, make, line, folder, monkeypatch):
    """Run a command line, and return its config."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    words = shlex.split(line)
    if "with" not in words:
        words.insert(words.index("--force") + 1 if "--force" in words else 0, "with")
    ex = make(lab, words)
    run = ex.run_commandline(["study.py", *words])
    assert run.status == "COMPLETED"
    return plain(to_plain(run.config))


CASES = [
    pytest.param(make, line, id=f"{source.partition(',')[0]}-{number}")
    for number in range(max(len(lines) for _, _, lines in PROJECTS))  # the first of each project first
    for source, make, lines in PROJECTS
    for line in lines[number : number + 1]
]


@pytest.mark.sampled(len(PROJECTS))
@pytest.mark.parametrize(("make", "line"), CASES)
def test_published_command_line_has_the_config_that_sacred_computes(make, line, tmp_path, monkeypatch, capsys):
    expected = config_of(LABS["sacred"], make, line, tmp_path / "sacred", monkeypatch)
    message = next((message for word, message in REJECTED.items() if word in line), None)
    if message is None:
        assert config_of(LABS["sacristan"], make, line, tmp_path / "sacristan", monkeypatch) == expected
        return
    with pytest.raises(SystemExit):
        config_of(LABS["sacristan"], make, line, tmp_path / "sacristan", monkeypatch)
    assert message in capsys.readouterr().err
    forced = config_of(LABS["sacristan"], make, f"--force {line}", tmp_path / "forced", monkeypatch)
    assert forced == expected
