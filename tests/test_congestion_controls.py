"""The interfaces of the congestion controls: which control a connection has, and that each control keeps to them."""

import inspect
from typing import get_args

import pytest

import tcpdelay as td
from tcpdelay.scenario.stack import QUIC_CONTROLS, CongestionControl
from tcpdelay.sim.congestion import cubic_aioquic, cubic_quinn, cubic_rfc9438, newreno, of_quic, of_tcp

INTERFACES = {"TCP": of_tcp, "QUIC": of_quic}
CONTROLS = [
    pytest.param(interface, module, id=f"{of}-{name}")
    for of, interface in INTERFACES.items()
    for name, module in interface.CONTROLS.items()
]


def functions(module):
    """Return the public functions of a module, and the names of their parameters."""
    return {
        name: list(inspect.signature(getattr(value, "py_func", value)).parameters)
        for name, value in vars(module).items()
        if not name.startswith("_") and (hasattr(value, "py_func") or inspect.isfunction(value))
    }


@pytest.mark.parametrize(("interface", "module"), CONTROLS)
def test_what_a_control_says_of_an_event_has_the_parameters_of_the_interface(interface, module):
    events, own = functions(interface), functions(module)
    for name in own.keys() & events.keys():
        assert own[name] == events[name], name
    # A misspelt event would never be called.
    unknown = [name for name in own if name.startswith(("on_", "before_", "after_")) and name not in events]
    assert unknown == []


def test_each_word_of_a_stack_has_its_control():
    assert set(get_args(CongestionControl)) <= set(of_tcp.CONTROLS)
    assert [of_tcp.number_of(name) for name in of_tcp.CONTROLS] == list(range(len(of_tcp.CONTROLS)))
    forms = {"aioquic": cubic_aioquic, "quinn": cubic_quinn, "rfc9002": cubic_rfc9438}
    for implementation, names in QUIC_CONTROLS.items():
        for name in names:
            stack = td.Stack.quic(implementation, name)
            found = list(of_quic.CONTROLS.values())[of_quic.number_of(stack)]
            assert found is {"newreno": newreno, "cubic": forms.get(implementation)}.get(name, found)


def test_a_state_of_a_control_has_a_field_of_each_name_once():
    names = of_tcp.CONNECTION.names
    assert len(names) == len(set(names))
    assert {"control", "cubic_epoch", "dctcp_alpha", "bbr_mode", "westwood_bw_est"} <= set(names)
