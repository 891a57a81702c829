"""The table of chains: each entry is a chain that answers through one interface, and a further one is one line."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.accuracy.errors import SIMULATOR_ERROR
from tcpdelay.ask import Requested, UnsupportedError
from tcpdelay.chain.chains import Chain, DistributionChain
from tcpdelay.delays import DelayDistribution
from tcpdelay.models import predict as door
from tcpdelay.scenario.scenario import Scenario, Target
from tcpdelay.scenario.stack import Linux

PATH = td.Path(rtt=0.05, loss=0.01)
VOICE = td.Flow(174, 0.020)
EXAMPLES = {
    "published.PublishedChain": Scenario(VOICE, PATH, td.Stack.newreno_2008()),
    "linux.chain.LinuxChain": Scenario(VOICE, PATH),
    "speech.SpeechModel": Scenario(td.Speech(174, 0.020), PATH),
    "video.VideoModel": Scenario(td.Video(3e5), PATH),
    "quic_chain.QuicChain": Scenario(VOICE, PATH, td.Stack.quic(delivery="stream_per_message")),
}


@pytest.mark.parametrize("name", [name for *_, name in door.CHAINS])
def test_each_chain_answers_as_a_whole_and_in_part(name):
    scenario = EXAMPLES[name]
    chain = door.chain_model(scenario)
    assert isinstance(chain, Chain)
    assert f"{type(chain).__module__}.{type(chain).__name__}" == f"tcpdelay.chain.{name}"
    whole = chain.answer(scenario, Requested())
    figures = Requested(quantiles=(0.5, 0.95), late_after=(0.05,), distribution=False)
    part = chain.answer(scenario, figures)
    assert whole.status == part.status == "exact"
    assert part.quantiles.tolist() == whole.require().quantile([0.5, 0.95]).tolist()
    assert part.late_fractions == pytest.approx(whole.require().late_fraction([0.05]))
    assert part.mean == pytest.approx(whole.mean)
    target = Target(0.06, 0.95)
    assert chain.answer(scenario, Requested(target=target, precision="decision")).meets(target) == whole.meets(target)
    assert whole.expected_error is not None


class Sixth(DistributionChain):
    """A chain of utterances that loses nothing."""

    stack, source, path_fields = Linux, td.Utterances, frozenset({"rtt"})

    def refusals(self, scenario):
        if scenario.path.loss > 0:
            yield UnsupportedError("loss", scenario.path.loss, "be 0")

    def delays(self, scenario, budget):
        return DelayDistribution(np.array([scenario.path.forward_delay]), np.ones(1), scenario.path.forward_delay)

    def error(self, delays, scenario, quantile):
        return SIMULATOR_ERROR


def test_a_further_chain_takes_one_line_of_the_table(monkeypatch):
    monkeypatch.setitem(sys.modules, "tcpdelay.chain.sixth", SimpleNamespace(Sixth=Sixth))
    monkeypatch.setattr(door, "CHAINS", ((Linux, td.Utterances, "sixth.Sixth"), *door.CHAINS))
    replies = td.Utterances(960, 0.020, speed=3)
    answer = door.predict(Scenario(replies, td.Path(rtt=0.05, loss=0)), method="chain")
    assert (answer.status, answer.mean, answer.expected_error) == ("exact", 0.025, SIMULATOR_ERROR)
    assert door.predict(Scenario(replies, PATH), method="chain").status == "unsupported"
