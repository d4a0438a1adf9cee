"""The robot: its measures, the angles that put its feet somewhere, and its model for MuJoCo.

Lengths are in metres, angles in radians. The body looks along x, and z points up. A leg's own x points outward; its
coxa turns about z, its femur and tibia rise with their angles, and at zero all three are in one horizontal line.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

COXA, FEMUR, TIBIA, FOOT = 0.05, 0.08, 0.13, 0.012  # lengths, and the radius of the ball that is a foot
REACH = COXA + 0.10  # from the hip to where a foot stands, seen from above
TIMESTEP = 0.002  # of the simulation, in seconds
TRIPODS = ("0.84 0.37 0 1", "0 0.45 0.70 1")  # the colours of the legs that step together


class Leg(NamedTuple):
    """Where a leg is mounted on the body, and the way it points."""

    name: str
    x: float
    y: float
    yaw: float


LEGS = (
    Leg("right_front", 0.12, -0.06, -np.pi / 4),
    Leg("right_middle", 0.0, -0.09, -np.pi / 2),
    Leg("right_rear", -0.12, -0.06, -3 * np.pi / 4),
    Leg("left_rear", -0.12, 0.06, 3 * np.pi / 4),
    Leg("left_middle", 0.0, 0.09, np.pi / 2),
    Leg("left_front", 0.12, 0.06, np.pi / 4),
)
"""Around the body, so that every second leg makes a tripod."""
LIMITS = {"coxa": (-1.0, 1.0), "femur": (-1.0, 1.5), "tibia": (-2.6, -0.2)}
JOINTS = tuple(f"{leg.name}_{part}" for leg in LEGS for part in LIMITS)

_MOUNTS = np.array([(leg.x, leg.y) for leg in LEGS])
_YAWS = np.array([leg.yaw for leg in LEGS])
STANCE = _MOUNTS + REACH * np.stack([np.cos(_YAWS), np.sin(_YAWS)], -1)
"""Where the feet stand, seen from above."""


def solve_angles(feet: NDArray[np.float64]) -> NDArray[np.float64]:
    """The 18 angles that put the feet, (..., 6, 3) from the body's centre, in their places; NaN beyond their reach."""
    x, y = np.moveaxis(feet[..., :2] - _MOUNTS, -1, 0)
    coxa = (np.arctan2(y, x) - _YAWS + np.pi) % (2 * np.pi) - np.pi
    out, up = np.hypot(x, y) - COXA, feet[..., 2]
    square = out**2 + up**2
    with np.errstate(invalid="ignore"):
        knee = np.arccos((FEMUR**2 + TIBIA**2 - square) / (2 * FEMUR * TIBIA))
        femur = np.arctan2(up, out) + np.arccos((FEMUR**2 + square - TIBIA**2) / (2 * FEMUR * np.sqrt(square)))
    return np.stack([coxa, femur, knee - np.pi], -1).reshape(*feet.shape[:-2], len(JOINTS))


def mjcf(cells: int = 0, side: float = 0.0, highest: float = 0.0) -> str:
    """The robot on a floor, as MuJoCo reads it: on a plane, or on a grid of cells whose heights are set later.

    The robot weighs 2.4 kg, of which the body weighs 1.2 kg and a leg 0.2 kg.

    Only feet and body touch the floor, and the floor alone decides the friction. The servos are as strong and as fast
    as those that robots of this size have: they sag under the weight and lag behind what they are told.
    """
    floor = 'type="hfield" hfield="ground"' if cells else 'type="plane" size="0 0 1"'
    return f"""
<mujoco model="hexapod">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{TIMESTEP}" integrator="implicitfast"/>
  <statistic center="0 0 0.1" extent="0.6"/>
  <visual>
    <global offwidth="1280" offheight="960"/>
    <headlight ambient="0.5 0.5 0.5" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
    <quality shadowsize="4096"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="flat" rgb1="0.99 0.99 1" width="16" height="16"/>
    <texture name="tiles" type="2d" builtin="checker" rgb1="0.93 0.94 0.96" rgb2="0.85 0.87 0.90" width="256"
             height="256"/>
    <material name="tiles" texture="tiles" texrepeat="5 5" texuniform="true"/>
    {f'<hfield name="ground" nrow="{cells}" ncol="{cells}" size="{side / 2} {side / 2} {highest} 0.1"/>' * bool(cells)}
  </asset>
  <default>
    <geom contype="0" conaffinity="0"/>
    <joint armature="0.005" damping="0.1" frictionloss="0.02"/>
    <position kp="12" kv="0.3" forcerange="-2.5 2.5" inheritrange="1"/>
    <default class="touching"><geom contype="1"/></default>
  </default>
  <worldbody>
    <light mode="trackcom" pos="-0.3 -0.4 2" dir="0.15 0.2 -1" cutoff="90" diffuse="0.4 0.4 0.4" specular="0 0 0"/>
    <geom name="floor" {floor} material="tiles" conaffinity="1" priority="1"/>
    <body name="body" pos="0 0 0.12">
      <freejoint/>
      <geom class="touching" type="box" size="0.13 0.055 0.02" mass="1.0" rgba="0.22 0.25 0.32 1"/>
      <geom class="touching" type="cylinder" size="0.085 0.018" mass="0.2" rgba="0.22 0.25 0.32 1"/>
      <geom type="sphere" pos="0.13 0 0.01" size="0.018" mass="0" rgba="0.90 0.62 0 1"/>
      {"".join(_leg(leg, TRIPODS[number % 2]) for number, leg in enumerate(LEGS))}
    </body>
  </worldbody>
  <actuator>{"".join(f'<position name="{joint}" joint="{joint}"/>' for joint in JOINTS)}</actuator>
</mujoco>"""


def _leg(leg: Leg, colour: str) -> str:
    return f"""
      <body name="{leg.name}_coxa" pos="{leg.x} {leg.y} 0" euler="0 0 {leg.yaw}">
        {_joint(leg, "coxa", "0 0 1")}
        <geom type="capsule" fromto="0 0 0 {COXA} 0 0" size="0.016" mass="0.06" rgba="0.35 0.38 0.45 1"/>
        <body name="{leg.name}_femur" pos="{COXA} 0 0">
          {_joint(leg, "femur", "0 -1 0")}
          <geom type="capsule" fromto="0 0 0 {FEMUR} 0 0" size="0.013" mass="0.08" rgba="{colour}"/>
          <body name="{leg.name}_tibia" pos="{FEMUR} 0 0">
            {_joint(leg, "tibia", "0 -1 0")}
            <geom type="capsule" fromto="0 0 0 {TIBIA} 0 0" size="0.009" mass="0.05" rgba="{colour}"/>
            <geom class="touching" name="{leg.name}_foot" type="sphere" pos="{TIBIA} 0 0" size="{FOOT}" mass="0.01"
                  rgba="0.15 0.17 0.22 1"/>
          </body>
        </body>
      </body>"""


def _joint(leg: Leg, part: str, axis: str) -> str:
    low, high = LIMITS[part]
    return f'<joint name="{leg.name}_{part}" axis="{axis}" range="{low} {high}"/>'
