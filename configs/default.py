"""Every setting of a run, once, with its meaning and unit. Other configs start from this one.

It is the base model of "Attention Is All You Need" on the embedded corpus; other files change it.
"""

from typing import Any

from ml_collections import config_dict

# A ConfigDict, mutable or frozen; type checkers know nothing of its attributes.
Config = Any


def get_config(arg: str = "") -> Config:
    """Returns the default config, locked: a config that starts from it cannot invent a key.

    Raises ValueError when an argument is given: `--config=FILE:ARG` is for configs that take one.
    """
    if arg:
        raise ValueError(f"this config takes no argument, got {arg!r}")
    config: Config = config_dict.ConfigDict()
    config.seed = 0  # of parameters, dropout, data order and sampling, 0 to 2^32 - 1
    # The path of a Python file with schemes, probes, sources, optimizers or schedules of one's own,
    # for the keys that name one ("": none). A run keeps it, and names it with its hash, PATH@HASH.
    config.rows = ""

    config.data = _data()
    config.model = _model()

    # How the devices are laid out: the product of the sizes is their number, -1 stands for the rest
    # of them (at most once). Results do not depend on it, beyond rounding.
    config.mesh = mesh = config_dict.ConfigDict()
    mesh.data = -1  # shards the rows of a batch
    mesh.fsdp = 1  # shards rows too, and parameters, gradients and the optimizer's state
    mesh.tensor = 1  # shards heads, hidden units and vocabulary
    mesh.sequence = 1  # shards the tokens of a row
    # What `preflight` compiles for, as "v5e-16" or "2xv5e-256" (two slices) ("": the devices here).
    mesh.topology = ""

    config.task = task = config_dict.ConfigDict()
    # None: what the architecture is for, "translation" (encoder_decoder), "masked_lm"
    # (encoder_only) or "causal_lm" (decoder_only). An encoder_decoder model also does
    # "text_to_text" (answers to texts) and "span_corruption" (what sentinels stand for), an
    # encoder_only model "classification" (one label a text), "tagging" (one label a word) and
    # "image_classification", an encoder_set model "detection".
    task.name = config_dict.placeholder(str)
    # Of the tokens, which are to be predicted ("masked_lm" and "span_corruption" only).
    task.mask_rate = 0.15
    task.mean_span_length = 3.0  # tokens that a sentinel stands for ("span_corruption" only)
    task.label_smoothing = 0.1  # probability spread evenly over all outcomes, 0 to 1
    task.z_loss = 0.0  # weight of log(Z)^2, which keeps logits from drifting (0: off)
    # Of "detection": weights of class, L1 and GIoU, in the loss and where boxes are matched.
    task.box_weights = (1.0, 5.0, 2.0)
    task.no_object_weight = 0.1  # of the class of queries that are matched with no box
    task.auxiliary_losses = True  # whether every layer of the decoder has a loss, or the last alone

    config.optimizer = optimizer = config_dict.ConfigDict()
    # "muon": for the matrices of attention and feed-forward sublayers, "adamw" for all else.
    optimizer.name = "adam"
    optimizer.schedule = "noam"
    optimizer.learning_rate = 1.0  # the peak; of "noam" a factor on width^-0.5 * warmup^-0.5
    optimizer.warmup_steps = 4000  # steps of linear growth (0: none)
    optimizer.burn_in_steps = 0  # before all that: at a rate of 0, while Adam's moments fill up
    # Of "warmup_stable_decay": the last steps, which decay. Of "halving": from one halving to the
    # next.
    optimizer.decay_steps = 0
    # How they decay, by what is left above the final rate when a share x is done: 1 - x ("linear"),
    # 1 - sqrt(x), (1 + cos(pi x)) / 2 or 1 - x^2; or by equal factors ("exponential", to a final
    # rate above 0).
    optimizer.decay_shape = "linear"
    optimizer.stable_steps = 0  # of "halving": steps before the first one
    # At the last step of "cosine", "linear" and "warmup_stable_decay": at 0, it changes nothing.
    optimizer.final_learning_rate = 0.0
    # Momentum; of "schedule_free" the share of the average where gradients are taken. Neither beta
    # matters to "adafactor" and "sgd".
    optimizer.beta1 = 0.9
    optimizer.beta2 = 0.98  # decay of the second moment
    # In tokens: beta2 is then 2^(-tokens of a step / this), where padding counts (None: beta2 is as
    # it says).
    optimizer.beta2_half_life = config_dict.placeholder(float)
    optimizer.epsilon = 1e-9  # of the Adams alone, also of that inside "muon"
    optimizer.weight_decay = 0.0  # decoupled, not of "adam"; spares biases, norms and omega
    # Matrices of layers decay by this power (1 or 2) of what the schedule has left of its peak (2:
    # AdamC, 2506.02285), all else by the first.
    optimizer.weight_decay_power = 1
    optimizer.clip_norm = 0.0  # largest global norm of the gradient (0: no clipping)
    # Rows (glob of parameter paths, factor on the learning rate, weight decay), as
    # ("embedding/*", 0.1, 0.0): the first that fits a parameter counts. A factor of 0 freezes.
    optimizer.groups = ()
    # Rows (glob of parameter paths, first layer, last layer, steps), as ("decoder/*", 10, 12, 200):
    # a linear warm-up of these layers alone, from 1 on and besides that of all.
    optimizer.layer_warm_ups = ()

    config.train = train = config_dict.ConfigDict()
    train.steps = 100_000  # updates; results.json tells the passes over train (epochs)
    train.accumulation_steps = 1  # micro-batches that one global batch is cut into
    train.ema_decay = 0.0  # of the moving average of parameters that is evaluated (0: none)
    train.log_every = 100  # steps; logged values are means since the last multiple
    train.evaluate_every = 1000  # steps (0: only after the last)
    # Steps after which the validation split is scored besides, as (0, 10, 500); ("log2",) means
    # 0, 1, 2, 4, 8, ... Step 0 is the start.
    train.evaluate_at = ()
    train.diagnostics_every = 0  # steps between measurements inside the model (0: none)
    # Likewise, steps at which it is measured besides; not 0, since it compares parameters before a
    # step with those after it.
    train.diagnostics_at = ()
    train.sharpness_every = 0  # steps between measurements of the loss's curvature (0: none)
    # Rows (name, every) of single measurements inside the model, as (("sink_mass", 100),): each is
    # logged as "NAME/..." every so many steps.
    train.probes = ()
    # What happens at a step whose loss, gradient or new parameters are not finite: "stop" ends the
    # run as diverged, "skip" leaves the update out, "restore" goes back to the last checkpoint and
    # continues with the batch after the bad one.
    train.bad_step = "stop"
    # A loss that is so many robust deviations above the median of the recent ones is bad too (None:
    # it is only logged, from 6 on).
    train.spike_threshold = config_dict.placeholder(float)

    config.log = log = config_dict.ConfigDict()
    # Services that get what metrics.jsonl does: "wandb" (Weights & Biases) and "mlflow", whose
    # packages have to be installed. Their own environment variables say where it goes.
    log.trackers = ()

    config.checkpoint = checkpoint = config_dict.ConfigDict()
    # Work directory or checkpoint of another run, whose parameters of equal path and shape (and
    # tokenizer) this one starts from ("": none).
    checkpoint.init_from = ""
    # Work directory or checkpoint (RUN/checkpoints/STEP) of another run that this one branches off
    # from, with all of its state ("": none). Schedule, learning rate, weight decay, clipping, steps
    # and what a rerun may change may differ, nothing else.
    checkpoint.fork_from = ""
    checkpoint.every = 1000  # steps (0: only after the last)
    # Steps after which there is a checkpoint that stays besides, as of train.evaluate_at.
    checkpoint.at = ()
    checkpoint.keep_last = 5  # newest checkpoints that stay, of those of checkpoint.every
    # The best by this metric stays too ("": none). Lower is better for all but accuracies.
    checkpoint.best_metric = "validation/loss"
    checkpoint.average_last = 1  # "last" is the mean of this many newest checkpoints' parameters

    config.evaluate = evaluate = config_dict.ConfigDict()
    evaluate.checkpoint = "last"  # which one the final scores use
    evaluate.batch_size = 64  # rows: sentences scored or translated at a time
    # Of the parameters of a checkpoint that is asked (evaluate, generate, embed, look) and not
    # trained: "bfloat16" rounds them, and halves their memory but for a CPU's, which converts them.
    evaluate.parameter_dtype = "float32"
    # What answers are scored by, of "exact_match", "bleu", "chrf", "rouge", "squad" ("text_to_text"
    # only; "squad": F1 and exact match of normalised words).
    evaluate.metrics = ("exact_match",)
    # Of the model's memory when it is scored and writes, in tokens (None: model.memory_length).
    evaluate.memory_length = config_dict.placeholder(int)
    # Lines whose results, as `generate` writes them, are kept at each evaluation in training.
    evaluate.samples = ()
    evaluate.bleu_tokenizer = "13a"  # sacreBLEU's; "none" for text that is tokenised already

    config.decode = decode = config_dict.ConfigDict()
    decode.method = "beam"
    decode.beam_size = 4  # hypotheses ("beam" only)
    decode.length_penalty = 0.6  # alpha of ((5 + length) / 6)^alpha, GNMT's ("beam" only)
    # A translation has at most its source's tokens + this many; a continuation and an answer this
    # many, and no more than learned positions allow.
    decode.extra_length = 50
    decode.num_samples = 1  # results for each line of `generate` ("sample" only)
    decode.stop = ()  # texts before which a text that is written, or scored, ends
    decode.temperature = 1.0  # logits are divided by it ("sample" only)
    decode.top_k = 0  # draws among the k likeliest tokens ("sample" only; 0: all)
    decode.top_p = 1.0  # draws among the fewest tokens that hold this mass ("sample" only)
    decode.seed = config_dict.placeholder(int)  # of the draws ("sample" only; None: seed)
    return config.lock()


def _data() -> Config:
    data: Config = config_dict.ConfigDict()
    # "embedded": the generated English-German grammar; "bigram_copy": words drawn from a Markov
    # chain, each 16 of them followed by their copy; "backcopy": the same chain, but after three of
    # its words comes the one before them; "repeat": drawn words, repeated at a distance that
    # differs by piece (of 64); "zipf": keys, some far rarer than others, and their answers (pieces
    # of 63); "tfds": a set of the TFDS catalogue; "text": two parallel files, a sentence a line
    # (for language models plain text files); "scan": files of the SCAN task; "tsv": tab-separated
    # columns; "labelled": lines "LABEL sentence"; "conll": a word and its tag a line; "conllu":
    # CoNLL-U; "json": a JSON object a line; "parquet": Parquet; "babi", "squad" (also XQuAD),
    # "fairytaleqa": questions in the formats of these sets. Of images "folder": files in
    # data.dir/SPLIT/LABEL; "digits": scikit-learn's, of 8x8 pixels; and "parquet" and "tfds"; with
    # boxes "scenes": generated; "coco": COCO's JSON; "voc": Pascal VOC's folders.
    data.source = "embedded"
    data.dir = ""  # folder of the data set's own files (of the sources that read files)
    # In the catalogue, as "wmt14_translate/de-en" ("tfds"); "shapes" or "digits" ("scenes"); the
    # exponent of frequencies, as "0.5" ("zipf").
    data.name = ""
    data.cache_dir = "~/.cache/transformer_jax"  # prepared data sets, tokens, compiled programs
    data.source_language = "en"  # the suffix of text files, a feature or a field of others
    data.target_language = "de"  # likewise
    # Which columns hold the text and its label or tags, where it is no translation. embedded, tfds:
    # features; json, parquet: fields, as "a.b" of nested ones; tsv: names in the header, or numbers
    # from "0" of columns without header; conllu: the label alone, as "upos".
    data.text_feature = "source"
    data.label_feature = "antecedent"  # the column or feature of labels or tags
    data.prefix = ""  # what stands before each source, such as "translate English to German: "
    data.document_separator = "\n"  # what ends a document of plain text ("": nothing but the file)
    # What each split is made of. embedded, tfds: TFDS split expressions; generated words: splits of
    # the same names; text of translations: prefixes P of pairs P.en, P.de; others: files. They are
    # in data.dir, plain or packed (.gz, .zst), and names may be patterns, as "part-*.json".
    data.train = ("train",)
    data.validation = ("validation",)  # what is scored during training
    data.test = ("test",)  # (): none; then a run ends with the scores of validation
    # Sets that are mixed for training, in place of data.train: rows of a source, its data.dir (of
    # tfds: its data.name), a file or pattern (tfds: a split) and a weight, the share of examples.
    data.mixture = ()
    # Parts that one model learns, of "text_to_text" alone: rows of a name, a weight (the share of
    # examples) and texts "KEY=VALUE" of what differs: keys of where the data is, such as data.dir
    # and data.train, data.prefix and evaluate.metrics. Each is scored apart ((): the data is one).
    data.parts = ()
    # With an empty data.validation: how many examples at the end of train (of text for language
    # models: characters) are held out instead.
    data.validation_size = 0
    # The share of the training examples that is used, spread evenly over all of them.
    data.train_share = 1.0
    # Whether lines of files that are no examples (not UTF-8, a missing field, ...) are counted and
    # left out. Otherwise the first one ends the run.
    data.skip_bad_lines = False
    # Of the order, masks and packing of training data alone: so initial parameters differ on equal
    # batches, or batches with equal initial parameters (None: seed).
    data.seed = config_dict.placeholder(int)
    data.workers = 8  # processes that tokenise at most; no more than there are cores

    data.tokenizer = tokenizer = config_dict.ConfigDict()  # one for both languages
    tokenizer.kind = "bpe"
    tokenizer.vocab_size = 8000  # tokens at most, special ones included (no meaning for "bytes")
    # Characters of the training split that it is learned from at most, spread over all of it.
    tokenizer.train_bytes = 100_000_000

    # Longer examples are left out of training, and cut off in an evaluation (BLEU and the like see
    # whole references); both are counted and reported. Documents of language models are cut into
    # pieces. An encoder_only model reads sources, a decoder_only model targets.
    data.max_source_length = 128  # tokens of one example, eos (and what stands first) included
    data.max_target_length = 128  # likewise, of targets
    data.packing = True  # several short examples share a row; otherwise one each, padded
    data.row_source_length = 256  # tokens of one packed row
    data.row_target_length = 256  # likewise, of targets
    # Rows and columns of pixels that images are fitted to, multiples of model.patch_size.
    data.image_size = (224, 224)
    # "inside": its aspect kept, and the size as the image lies or stands; "cover": its aspect kept,
    # cut at the longer side.
    data.image_fit = "stretch"
    data.channels = 3  # of images (1: grey)
    # What is done to images of training by chance, in this order: "flip" (half of them), "shift"
    # (by up to 1/8 of each side), "crop" (8 to 100 % of the area, resized back), "colour".
    data.augment = ()
    data.batch_size = 64  # rows of one global batch; a multiple of data.streams
    # The number of streams that the order of the data is divided into. It is part of what a run is,
    # so that any number of devices sees the same batches.
    data.streams = 8
    return data


def _model() -> Config:
    model: Config = config_dict.ConfigDict()
    model.family = "transformer"  # of the models in FAMILIES
    model.architecture = "encoder_decoder"
    # Of "recurrent": translation with or without attention ("rnnsearch", "rnnencdec", "gnmt"), or a
    # stack alone.
    model.recurrence = "rnnsearch"
    model.residual = "post_ln"  # where norms stand, and how branches, skips and draws are scaled
    model.encoder_residual = config_dict.placeholder(str)  # None: as model.residual
    model.decoder_residual = config_dict.placeholder(str)  # None: as model.residual
    # Of "depth_scaled": branches are scaled by (layers / 2)^-depth_exponent, 1 as in CompleteP, 0.5
    # as in Depth-muP.
    model.depth_exponent = 1.0
    # How large kernels and token tables are drawn; the gains of a scheme come on top.
    model.init = "xavier"
    # How draws, multipliers and learning rates follow the sizes from those at which a learning rate
    # was found, the base.
    model.parameterization = "standard"
    model.base_width = config_dict.placeholder(int)  # d_model there
    model.base_depth = config_dict.placeholder(int)  # layers of a stack there
    model.num_layers = 6  # of the encoder, and of the decoder
    model.num_encoder_layers = config_dict.placeholder(int)  # None: num_layers
    model.num_decoder_layers = config_dict.placeholder(int)  # None: num_layers
    model.d_model = 512  # width of the residual stream
    model.num_heads = 8  # of each attention
    model.num_kv_heads = config_dict.placeholder(int)  # of keys and values; None: num_heads
    model.head_dim = config_dict.placeholder(int)  # None: d_model / num_heads
    model.d_ff = 2048  # hidden width of the feed-forward sublayer
    # Of query and key: their product over sqrt(head_dim), their product, or v tanh(q + k).
    model.attention_score = "scaled_dot_product"
    # On the draws of query, key and value. 0.5**0.5 draws them as one matrix, as fairseq does.
    model.attention_gain = 1.0
    # c of c tanh(score / c), which bounds scores of attention before the softmax (None: no bound).
    model.attention_softcap = config_dict.placeholder(float)
    # The weights that a query has for the T keys that it sees, by their scores x: the softmax; that
    # with one more score, which looks at nothing and is 0 ("off_by_one") or trained, one a head
    # ("sink"); "sigmoid", of x - ln T; or relu(x) / T ("relu"). The last two need not add up to 1.
    model.attention_weights = "softmax"
    # What multiplies the outputs of heads: sigmoid(X W_g) of attention's input X, where W_g is 0 at
    # first, with one number for each "head", or for each "entry" of a head.
    model.attention_gate = "none"
    model.qk_norm = False  # a norm over each head's query and key, before their product
    model.qk_norm_over = "head"  # each, or all "heads" of a token at once, as in OLMo 2
    model.activation = "relu"
    model.bias = True  # of the products of attention (but for keys) and feed-forward sublayers
    # Of self-attention: of "all" four products, those of queries, keys and values ("inward"), that
    # of the outputs ("outward") or "none". None: as model.bias says, which is of the others then.
    model.attention_bias = config_dict.placeholder(str)
    model.norm = "layer_norm"
    model.norm_epsilon = 1e-5  # what norms add to the mean square
    model.embedding_norm = False  # a norm on the sum of embedding and position, as in BERT
    model.positions = "sinusoidal"
    model.rotary_base = 10_000.0  # of the wavelengths ("rotary" only)
    # Of rotary frequencies: () or a name and its numbers, as ("linear", "factor=8"). "linear",
    # "llama3", "yarn", "longrope" (of short rows) and "dynamic" (likewise) take them by the names
    # that Hugging Face's config.json has.
    model.rotary_scaling = ()
    model.rotary_fraction = 1.0  # the share of a head's channels that turn ("rotary" only)
    # The self-attention of each layer, repeated over the depth of a stack: "full", "window", which
    # sees near tokens alone, "unturned" (NoPE) and "window_unturned", which rotary positions do not
    # turn.
    model.layer_pattern = ("full",)
    # Of layers with a sliding window: a query sees the keys at a distance below it, those before it
    # and, in an encoder, those after it.
    model.window = config_dict.placeholder(int)
    # rotary_base of layers with a window; None: that of the others.
    model.window_rotary_base = config_dict.placeholder(float)
    model.max_length = 1024  # rows of the table of learned positions ("learned" only)
    model.max_distance = config_dict.placeholder(int)  # larger ones count as it ("distance" only)
    # Whose vectors are added to what enters a stack ("stream"), or in every "attention" to what its
    # queries and keys are made from (of models that do not write).
    model.positions_in = "stream"
    # Learned vectors of "encoder_set", which can tell as many boxes (None: data.max_target_length).
    model.num_queries = config_dict.placeholder(int)
    # What makes a vector of each patch of an image: "patches" a matrix, "conv" convolutions that
    # look beyond it, "resnet" and "resnet_basic" networks that are imported.
    model.stem = "patches"
    model.patch_size = 16  # rows, and columns, of pixels
    model.resnet_depths = (3, 4, 6, 3)  # blocks of each stage ("resnet", "resnet_basic")
    model.resnet_width = 64  # channels of the first convolution ("resnet", "resnet_basic")
    # Learned vectors before the patches: a class token, which pooling="first" reads, and registers.
    model.prefix_tokens = 1
    model.pixel_mean = (0.5,)  # of values in 0 to 1; one of all channels, or one of each
    model.pixel_std = (0.5,)  # that the difference to the mean is divided by; likewise
    # Tokens before a row whose states its tokens see, as in Transformer-XL (0: none). Then rows of
    # training and scoring go on in the text where those of the batch before ended.
    model.memory_length = 0
    # Of a recurrent decoder alone: whether its states are carried from row to row. Then rows go on
    # likewise, and no gradient crosses from one to the next.
    model.stateful = False
    # What stands for a whole text or image (of classes of these, and of `embed`): the mean of all
    # tokens or patches, or the first place.
    model.pooling = "mean"
    # Which of the source's table, the target's table and the logits' kernel are one: all three, the
    # first two ("inputs"), the last two ("decoder"), or none.
    model.tied_embeddings = "all"
    model.embedding_scale = config_dict.placeholder(float)  # on looked up rows; None: sqrt(d_model)
    model.logits_bias = False  # a number for each token, added to its logits
    model.logits_softcap = config_dict.placeholder(float)  # of the logits of tokens, likewise
    # Of recurrent models: all parameters are drawn uniformly from -init_scale to init_scale (None:
    # each by its kind).
    model.init_scale = config_dict.placeholder(float)
    model.vocab_size = config_dict.placeholder(int)  # None: the tokenizer's
    model.dropout_rate = 0.1  # on the output of every residual branch
    model.embedding_dropout_rate = 0.1  # on the sum of embedding and position
    model.attention_dropout_rate = 0.0  # on the attention weights
    model.feed_forward_dropout_rate = 0.0  # on the hidden layer of the feed-forward sublayer
    model.dtype = "float32"  # of the products; parameters, residual stream and logits stay float32
    # What the backward pass computes again instead of keeping it, in each layer: nothing, all but
    # the products with parameters, all but those that sublayers start with, all but those of hidden
    # layers and attention's results, or everything.
    model.remat = "none"
    # What computes attention: plain products, or a kernel that never holds the weights of a whole
    # row ("splash": TPU only; "cudnn": NVIDIA GPUs only, in bfloat16).
    model.attention_kernel = "xla"
    return model
