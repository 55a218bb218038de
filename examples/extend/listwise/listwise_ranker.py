"""A listwise loss on any tower: the softmax cross-entropy of the clicks in each list, from Rax."""

import rax

from clickexp.models import Model, Role
from clickexp.parameters import EmbeddingParameterConfig


class ListwiseRanker(Model):
    """Minimises -sum_i c_i log softmax(s)_i over the scores s of a tower; relevance is the score."""

    name = "Listwise"

    attraction: Role = Role(EmbeddingParameterConfig())

    def relevance(self, batch):
        return self.attraction.logit(batch)

    def compute_loss(self, batch, aggregate=True):
        scores, clicks = self.relevance(batch), batch["clicks"].astype("float32")
        losses = rax.softmax_loss(scores, clicks, where=batch["mask"], reduce_fn=None)
        return losses.mean(where=batch["mask"].any(axis=1)) if aggregate else losses
